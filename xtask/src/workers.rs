//! The same work on many things, as many at a time as there are processors.

use std::sync::Mutex;
use std::thread;

/// Does `work` with each of `things`, begins with the first, and returns the results in their order.
pub(crate) fn each<T: Send, R: Send>(things: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(things.into_iter().enumerate());
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.next()
    };
    let one_after_the_other = || {
        let mut done = Vec::new();
        while let Some((place, thing)) = next() {
            done.push((place, work(thing)));
        }
        done
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(one_after_the_other)).collect();
        let results = workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("work that panics is a bug"));
        results.collect()
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_things() {
        let things: Vec<u64> = (0..50).rev().collect();
        let slow = |thing: u64| {
            thread::sleep(std::time::Duration::from_micros(thing * 20));
            thing * 2
        };
        let results = each(things, slow);
        assert_eq!(results, (0..50).rev().map(|thing| thing * 2).collect::<Vec<_>>());
        assert!(each(Vec::<u64>::new(), slow).is_empty());
    }
}
