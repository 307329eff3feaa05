//! The examples resolve, and to what they should.

use super::support::{repository, resolve_file};
use pipec_compiler::spec::{Spec, print};
use pipec_program::Init;

fn example(path: &str) -> Spec {
    match resolve_file(path) {
        Ok(resolution) => {
            assert_eq!(resolution.warnings, [], "{path}");
            resolution.spec
        }
        Err(diagnostics) => panic!("{path}\n{diagnostics}"),
    }
}

#[test]
fn tiny_is_what_it_says() {
    insta::assert_snapshot!(print(&example("examples/tiny.pipe")));
}

#[test]
fn tied_has_one_table() {
    insta::assert_snapshot!(print(&example("examples/tied.pipe")));
}

#[test]
fn shakespeare_is_a_model_of_the_library() {
    let spec = example("examples/shakespeare.pipe");
    assert_eq!(spec.model.name, "plays");
    assert_eq!(spec.model.weights(), 9_901_760);
}

/// Every file of the examples is a pipeline, or used by one.
#[test]
fn all_examples_resolve() {
    for folder in ["examples", "examples/reference"] {
        let mut files: Vec<_> = std::fs::read_dir(repository().join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".pipe") && name != "model.pipe")
            .collect();
        files.sort();
        assert!(!files.is_empty());
        for file in files {
            example(&format!("{folder}/{file}"));
        }
    }
}

/// Names, shapes and bounds of the reference README, in its order, and its parameter counts.
#[test]
fn reference_parameters_are_numbered_as_published() {
    let presets = [
        ("tiny_a", 4, 32, 88, 64, 54_560),
        ("tiny_b", 8, 48, 128, 96, 231_216),
        ("s", 4, 256, 688, 4096, 5_261_568),
        ("m", 8, 512, 1376, 8192, 33_694_208),
        ("tiny_48", 48, 32, 88, 64, 48 * 12_608 + 2 * 64 * 32 + 32),
    ];
    for (name, layers, hidden, ffn, vocab, weights) in presets {
        let spec = example(&format!("examples/reference/{name}.pipe"));
        let gain = Init::Constant { value: 1.0 };
        let uniform = |square: f64| Init::Uniform { bound: square.sqrt() };
        let (wide, narrow) = (uniform(3.0 / hidden as f64), uniform(3.0 / ffn as f64));
        let mut expected = vec![("embed".to_owned(), vec![vocab, hidden], uniform(3.0))];
        for layer in 0..layers {
            let rows = [
                ("attn_norm", vec![hidden], gain),
                ("wq", vec![hidden, hidden], wide),
                ("wk", vec![hidden, hidden], wide),
                ("wv", vec![hidden, hidden], wide),
                ("wo", vec![hidden, hidden], wide),
                ("ffn_norm", vec![hidden], gain),
                ("w_gate", vec![ffn, hidden], wide),
                ("w_up", vec![ffn, hidden], wide),
                ("w_down", vec![hidden, ffn], narrow),
            ];
            expected.extend(rows.map(|(name, shape, init)| (format!("layer.{layer}.{name}"), shape, init)));
        }
        expected.push(("final_norm".to_owned(), vec![hidden], gain));
        expected.push(("head".to_owned(), vec![vocab, hidden], wide));
        let found: Vec<_> = spec
            .model
            .parameters
            .values()
            .map(|parameter| (parameter.name.clone(), parameter.shape.clone(), parameter.init))
            .collect();
        assert_eq!(found, expected, "{name}");
        assert_eq!(spec.model.weights(), weights, "{name}");
        assert_eq!(spec.model.layers.len(), 3, "{name}");
    }
}
