//! Completions and manual pages say what the command line has.

use std::path::Path;
use std::process::Command;

use super::process::{complaint, output, text};

/// All verbs that help lists.
fn verbs() -> Vec<String> {
    let help = text(&output(&["--help"]).stdout);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = lines.take_while(|line| !line.is_empty());
    let verbs = listed.map(|line| line.split_whitespace().next().unwrap().to_owned());
    let verbs: Vec<_> = verbs.filter(|verb| verb != "help").collect();
    assert!(verbs.len() > 15, "{help}");
    verbs
}

/// What a bash offers for the last of these words once it has read the script.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    // The function that the script says completes `vramd`, called as bash calls it.
    let program = r#"
        source "$1"; shift
        function=$(complete -p vramd | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        "$function" vramd "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let bash = Command::new("bash")
        .args(["--norc", "-c", program, "bash", script.to_str().unwrap()])
        .args(words)
        .output()
        .unwrap();
    assert_eq!(text(&bash.stderr), "", "{words:?}");
    text(&bash.stdout).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_and_their_options() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("vramd.bash");
    std::fs::write(&script, output(&["completions", "bash"]).stdout).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&script).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_eq!(offered(&script, &["vramd", "qu"]), ["quota"]);
    assert_eq!(offered(&script, &["vramd", "quota", "--we"]), ["--weight"]);
    let all = offered(&script, &["vramd", ""]);
    assert!(verbs().iter().all(|verb| all.contains(verb)), "{all:?}");
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        let script = text(&output(&["completions", shell]).stdout);
        assert!(script.contains("quota"), "{shell}: {script}");
    }
    let said = complaint(&["completions", "sh"], 2);
    assert!(said.contains("bash") && said.contains("zsh"), "{said}");
}

#[test]
fn every_verb_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    let written = output(&["man", pages.to_str().unwrap()]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    for verb in verbs() {
        let text = page(&format!("vramd-{verb}.1"));
        assert!(text.contains(&format!(".TH vramd-{verb} 1")), "{text}");
        assert!(page("vramd.1").contains(&format!("vramd\\-{verb}(1)")), "{verb}");
    }
    assert!(page("vramd-quota.1").contains("\\-\\-weight"));
    // In the way of the folder is a file.
    let file = pages.join("vramd.1");
    let said = complaint(&["man", file.to_str().unwrap()], 1);
    assert!(said.contains("cannot make folder"), "{said}");
}
