//! `docs/reference.md` lists every op, its examples are legal, and what is shipped is in the one canonical layout.

use super::support::{document, draw_all, repository, spec};
use pipe_grammar::diagnostic::SourceId;
use pipec_compiler::spec::{LIBRARY, Sources, check, ops};
use std::fmt::Write as _;

/// What each op computes, in the order of the table.
const MEANINGS: &[(&str, &str)] = &[
    (
        "input",
        "token ids, `input(token, [seq])`: the first is the tokens of the step, the second the next ones",
    ),
    ("parameter", "a tensor of one or two extents that is trained"),
    ("embedding", "rows of a table `[vocab, dim]` by token id"),
    ("positions", "`x` plus row `first` + position of a table `[rows, width]`; `first` is 0"),
    ("linear", "`x W^T`, plus a bias with `bias: true`; W is `[out, in]`"),
    ("rms_norm", "`x / sqrt(mean(x^2) + eps)` times a gain, over each vector; `eps` is 1e-5"),
    (
        "layer_norm",
        "`(x - mean) / sqrt(variance + eps)` times a gain plus a bias, over each vector; `eps` is 1e-5",
    ),
    ("heads", "each vector split into `count` vectors"),
    ("merge", "the vectors of a token joined into one"),
    (
        "rope",
        "rotary positions; `pairing` is `half` (component i with i + rotary / 2) or `adjacent` (2 i with 2 i + 1), \
         `base` 10000, `rotary` the whole vector; `scaling: llama3 { factor, low, high, original }`",
    ),
    (
        "attention",
        "`softmax(scale q k^T) v` for each head under `mask: causal`, `full` or `window(n)` (the last n keys); fewer \
         heads of keys and values than of queries are shared evenly; `scale` is 1 / sqrt(width)",
    ),
    ("silu", "`x / (1 + e^-x)`"),
    ("gelu", "`x (1 + erf(x / sqrt 2)) / 2`"),
    ("gelu_tanh", "the approximation of gelu by tanh"),
    ("relu", "`max(x, 0)`"),
    ("add", "the sum of two values of one shape"),
    ("mul", "the product, number by number, of two values of one shape"),
    ("softmax", "softmax of each vector"),
    (
        "dropout",
        "each number becomes 0 with probability `p`, others are divided by 1 - `p`; the draw depends on seed, step and \
         place alone, so that it can be repeated",
    ),
    ("cross_entropy", "the loss against the next tokens; targets equal to `ignore` count for nothing"),
];

#[test]
fn every_op_is_explained() {
    let mut table = String::from("| op | computes |\n| --- | --- |\n");
    let mut names = Vec::new();
    for (name, meaning) in MEANINGS {
        let (_, arguments) =
            ops().find(|(op, _)| op == name).unwrap_or_else(|| panic!("there is no op {name}"));
        writeln!(table, "| `{name}({})` | {meaning} |", arguments.join(", ")).unwrap();
        names.push(*name);
    }
    assert_eq!(names, ops().map(|(op, _)| op).collect::<Vec<_>>());
    document("docs/reference.md", "ops", &table);
}

#[test]
fn examples_of_the_reference_are_legal() {
    let page = std::fs::read_to_string(repository().join("docs/reference.md")).unwrap();
    let mut examples = 0;
    for example in page.split("```pipe\n").skip(1) {
        let text = example.split("```").next().unwrap();
        let parsed = pipe_grammar::parse(SourceId(0), text);
        assert_eq!(parsed.diagnostics, []);
        let mut sources = Sources::new();
        sources.add("example.pipe", parsed.file);
        let said = check(&sources, SourceId(0));
        assert!(said.is_empty(), "{}", draw_all(&said, &[text.to_owned()]));
        examples += 1;
    }
    assert!(examples > 0);
}

#[test]
fn shipped_files_are_formatted() {
    let mut texts: Vec<(String, String)> =
        LIBRARY.iter().map(|file| (file.path.to_owned(), file.text.to_owned())).collect();
    for folder in ["examples", "examples/reference"] {
        for entry in std::fs::read_dir(repository().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "pipe") {
                texts.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    for (path, text) in texts {
        assert_eq!(pipe_grammar::format(&text).as_deref(), Ok(text.as_str()), "{path}: run `pipec fmt`");
    }
}

/// The words for what is left out are those of the tables.
#[test]
fn defaults_are_as_documented() {
    let text = "model small {
    tokens = input(token, [seq])
    targets = input(token, [seq])
    x = embedding(tokens, vocab: 256, dim: 64)
    x = linear(layer_norm(x), 16, bias: true)
    loss = cross_entropy(linear(x, 256), targets)
}
train { seq: 8, global_batch: 2, micro_batch: 1, optimizer: adamw { lr: 1e-3 } }
pipeline { model: small, cluster: std::clusters::local { devices: 1 } }
";
    insta::assert_snapshot!(pipec_compiler::spec::print(&spec(text).spec));
}
