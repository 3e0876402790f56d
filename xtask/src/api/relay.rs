//! A port of this host that leads to a Unix socket, for a client that knows no others.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};

/// The port. It is there until this process ends.
pub(super) struct Relay {
    address: SocketAddr,
}

impl Relay {
    /// Leads all who connect from now on to `socket`.
    pub(super) fn start(socket: &Path) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on this host")?;
        let address = listener.local_addr().context("a port without a number")?;
        let socket = socket.to_owned();
        thread::spawn(move || keep(&listener, &socket));
        Ok(Self { address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn keep(listener: &TcpListener, socket: &Path) {
    for client in listener.incoming().flatten() {
        let socket: PathBuf = socket.to_owned();
        // How a connection ends concerns its client alone.
        thread::spawn(move || lead(client, &socket));
    }
}

/// Carries bytes both ways until both ends have said all.
fn lead(client: TcpStream, socket: &Path) -> io::Result<()> {
    let server = UnixStream::connect(socket)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let sent = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Write)?;
        sent
    });
    let (mut server, mut client) = (server, client);
    // A server that leaves something unread resets the connection after its answer.
    let answered = io::copy(&mut server, &mut client);
    client.shutdown(Shutdown::Both)?;
    answered.map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn bytes_go_both_ways_and_ends_too() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            stream.read_to_string(&mut asked).unwrap();
            stream.write_all(asked.to_uppercase().as_bytes()).unwrap();
        });
        let relay = Relay::start(&socket).unwrap();
        let mut client = TcpStream::connect(relay.address()).unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        server.join().unwrap();
        assert_eq!(answer, "QUESTION");
    }
}
