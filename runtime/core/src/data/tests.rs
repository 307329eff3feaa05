use super::*;
use pipec_program::TokenWidth;
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;

fn batch(micro_batches: u32, sequences: u32, tokens: u32) -> Batch {
    Batch { micro_batches, sequences, tokens, slices: 1, stages: 1, forward: 0, copies: 1 }
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("the folder");
        fs::write(path, content).expect("the file");
    }
    folder
}

fn text(paths: &[&str], shuffle: bool) -> Data {
    let paths = paths.iter().map(|&path| path.to_owned()).collect();
    Data::Text { paths, tokenizer: Tokenizer::Bytes, shuffle }
}

fn open(data: &Data, batch: Batch, folder: &TempDir) -> Result<Batches, DataError> {
    Batches::from_data(data, batch, 1, Some(256), folder.path())
}

/// As bytes, for reading.
fn characters(tokens: &[u32]) -> String {
    tokens.iter().filter_map(|&token| char::from_u32(token)).collect()
}

/// The first two sequences of the reference configuration `tiny-a` (seed 1234, 16 tokens, vocabulary of 64).
#[test]
fn the_formula_is_that_of_the_reference_run() {
    let data = Data::Formula { vocab: 64 };
    let mut batches = Batches::from_data(&data, batch(1, 2, 16), 1234, Some(64), Path::new(""))
        .expect("a formula needs no file");
    let fed = batches.step(0).expect("the formula has no end");
    let first = [25, 30, 27, 18, 55, 11, 13, 40, 3, 43, 2, 7, 12, 6, 11, 34, 39];
    let second = [4, 2, 2, 7, 1, 4, 41, 47, 29, 35, 11, 39, 54, 44, 5, 16, 49];
    assert_eq!(fed.tokens, [&first[..16], &second[..16]].concat());
    assert_eq!(fed.targets, [&first[1..], &second[1..]].concat());
    assert!(matches!(
        Batches::from_data(&data, batch(1, 2, 16), 1234, Some(63), Path::new("")),
        Err(DataError::OutsideVocabulary { token: 63, vocab: 63, .. })
    ));
}

#[test]
fn files_are_joined_in_order_and_cut_into_windows() {
    let folder = folder(&[
        ("b/two.txt", b"ghijkl"),
        ("a.txt", b"abcdef"),
        ("b/.hidden", b"???"),
        ("b/x.bin", b"\xFF"),
    ]);
    let mut batches = open(&text(&["b", "a.txt"], false), batch(1, 2, 2), &folder).expect("the data");
    // "abcdefghijkl": windows ab|c, cd|e, ef|g, gh|i, ij|k; nothing follows the last letter.
    assert_eq!(batches.sequences(), Some(5));
    let fed = batches.step(0).expect("a step");
    assert_eq!((characters(&fed.tokens), characters(&fed.targets)), ("abcd".to_owned(), "bcde".to_owned()));
    // A step that crosses the end of the epoch goes on at its start.
    let fed = batches.step(4).expect("a step");
    assert_eq!((characters(&fed.tokens), characters(&fed.targets)), ("ijab".to_owned(), "jkbc".to_owned()));
}

#[test]
fn patterns_find_files_below() {
    let folder = folder(&[("docs/a.md", b"aaaa"), ("docs/deep/b.md", b"bbbb"), ("docs/c.txt", b"cccc")]);
    let mut batches = open(&text(&["docs/**/*.md"], false), batch(1, 1, 7), &folder).expect("the data");
    assert_eq!(characters(&batches.step(0).expect("a step").tokens), "aaaabbb");
}

#[test]
fn shuffling_visits_every_window_once_an_epoch_in_a_new_order() {
    let folder = folder(&[("a.txt", b"abcdefghijklmnopqrstuvwxyz0")]);
    let mut batches = open(&text(&["a.txt"], true), batch(1, 26, 1), &folder).expect("the data");
    let (first, second) = (batches.step(0).expect("a step").tokens, batches.step(26).expect("a step").tokens);
    assert_ne!(first, second);
    let letters = |tokens: &[u32]| tokens.iter().copied().collect::<BTreeSet<_>>().len();
    assert_eq!((letters(&first), letters(&second)), (26, 26));
    // The place alone decides, however one came there.
    let mut again = open(&text(&["a.txt"], true), batch(2, 1, 1), &folder).expect("the data");
    assert_eq!(again.step(4).expect("a step").tokens, first[4..6]);
}

#[test]
fn token_files() {
    let ids: Vec<u8> = [1u16, 2, 3, 300, 5, 6, 7].iter().flat_map(|id| id.to_le_bytes()).collect();
    let folder = folder(&[("short.bin", &ids), ("odd.bin", b"abc")]);
    let data = |path: &str, width| Data::Tokens { path: path.to_owned(), width, shuffle: false };
    let short = data("short.bin", TokenWidth::U16);
    let mut batches =
        Batches::from_data(&short, batch(1, 2, 2), 1, Some(301), folder.path()).expect("the data");
    assert_eq!(batches.step(0).expect("a step").tokens, [1, 2, 3, 300]);
    assert_eq!(batches.step(1).expect("a step").targets, [300, 5, 6, 7]);
    let mut batches =
        Batches::from_data(&short, batch(1, 2, 2), 1, Some(300), folder.path()).expect("the data");
    let error = batches.step(0).expect_err("a token outside");
    insta::assert_snapshot!(error, @"`short.bin` holds the token 300, but the vocabulary of the model has 300 tokens");
    let odd = Batches::from_data(&data("odd.bin", TokenWidth::U32), batch(1, 1, 1), 1, None, folder.path());
    assert!(matches!(odd, Err(DataError::PartialToken { bytes: 3, width: 4, .. })));
}

#[test]
fn a_tokenizer_file() {
    let tokenizer = br#"{
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "the": 0, "cat": 1, "sat": 2, "?": 70000 }, "unk_token": "?" }
    }"#;
    let folder = folder(&[("t.json", tokenizer), ("a.txt", b"the cat sat the dog"), ("bad.json", b"{}")]);
    let data = |file: &str| Data::Text {
        paths: vec!["a.txt".to_owned()],
        tokenizer: Tokenizer::File(file.to_owned()),
        shuffle: false,
    };
    let open = |file, vocab| Batches::from_data(&data(file), batch(1, 1, 4), 1, Some(vocab), folder.path());
    let fed = open("t.json", 70001).expect("the data").step(0).expect("a step");
    assert_eq!((fed.tokens, fed.targets), (vec![0, 1, 2, 0], vec![1, 2, 0, 70000]));
    assert!(matches!(open("t.json", 70000), Err(DataError::OutsideVocabulary { token: 70000, .. })));
    assert!(matches!(open("bad.json", 9), Err(DataError::Tokenizer { .. })));
    assert!(matches!(open("missing.json", 9), Err(DataError::Tokenizer { .. })));
}

/// A byte-level BPE as GPT-2 has one: words split by its pattern, a space as the first letter of the word after it, merges
/// by their rank and not by their length or place, and bytes for what has no letter.
#[test]
fn merges_are_made_by_rank() {
    let tokenizer = r#"{
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{ "id": 17, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": { "a": 0, "c": 1, "e": 2, "h": 3, "t": 4, "!": 5, "Ġ": 6, "Ċ": 7, "Ã": 8, "©": 9, "th": 10, "the": 11,
                "at": 12, "Ġc": 13, "Ġcat": 14, "hat": 15, "Ã©": 16, "<|endoftext|>": 17 },
            "merges": ["t h", "th e", "a t", "Ġ c", "Ġc at", "h at", "Ã ©"]
        }
    }"#;
    let text = "the cat hath\n hat!é<|endoftext|>the";
    let expected = [
        &[11][..],      // the
        &[14],          // Ġcat
        &[6, 3, 0, 10], // Ġ h a th: th comes before at, although hat would be longer
        &[7],           // the line end
        &[6, 15],       // Ġ hat
        &[5],           // !
        &[16],          // two bytes in one token
        &[17],          // the special token, where it stands in the text
        &[11],
    ]
    .concat();
    let folder = folder(&[("t.json", tokenizer.as_bytes()), ("a.txt", text.as_bytes())]);
    let data = Data::Text {
        paths: vec!["a.txt".to_owned()],
        tokenizer: Tokenizer::File("t.json".to_owned()),
        shuffle: false,
    };
    let length = u32::try_from(expected.len() - 1).expect("few");
    let mut batches =
        Batches::from_data(&data, batch(1, 1, length), 1, Some(18), folder.path()).expect("the data");
    let fed = batches.step(0).expect("a step");
    assert_eq!((&fed.tokens[..], &fed.targets[..]), (&expected[..expected.len() - 1], &expected[1..]));
}

#[test]
fn what_is_wrong_with_the_data_is_said() {
    let folder = folder(&[("a.txt", b"abcdef"), ("x.bin", b"\xFF\xFE"), ("empty/.keep", b"")]);
    let error =
        |paths: &[&str], batch| open(&text(paths, false), batch, &folder).expect_err("an error").to_string();
    insta::assert_snapshot!(error(&["*.md"], batch(1, 1, 2)), @"no text files at `*.md`");
    insta::assert_snapshot!(error(&["empty"], batch(1, 1, 2)), @"no text files at `empty`");
    insta::assert_snapshot!(
        error(&["a.txt"], batch(2, 2, 2)),
        @"the text of a.txt holds 6 tokens, that is 2 sequences of 2; one step needs 4 sequences, 9 tokens"
    );
    assert!(error(&["missing.txt"], batch(1, 1, 2)).starts_with("cannot read `"));
    assert!(error(&["x.bin"], batch(1, 1, 2)).ends_with("x.bin` is not UTF-8 text"));
    assert!(error(&["a[.txt"], batch(1, 1, 2)).starts_with("`a[.txt` is not a file pattern"));
    let vocab = Batches::from_data(&text(&["a.txt"], false), batch(1, 1, 2), 1, Some(102), folder.path());
    assert!(matches!(vocab, Err(DataError::OutsideVocabulary { token: 102, .. })));
}
