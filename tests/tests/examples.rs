//! What the examples compile to is kept beside them: their schedule, makespan, bubble and memory.

use pipec_tests::root;

/// The `.pipe` files of a folder.
fn files(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut files: Vec<_> =
        names.filter(|name| name.ends_with(".pipe")).map(|name| format!("../{folder}/{name}")).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn examples_compile_to_what_is_kept() {
    for file in [files("examples"), files("examples/compare")].concat() {
        pipec::assert_snapshot!(file);
    }
}
