//! The shipped library: every model has the published number of weights, every cluster resolves, and the pages about
//! them say what is true.

use super::support::{document, spec};
use pipec_compiler::spec::{Cluster, LIBRARY, Sources, Spec, Wire, check};
use pipec_program::{DType, FlopsPerSecond};
use std::fmt::Write as _;

/// Where a number of weights comes from.
#[derive(Clone, Copy, PartialEq)]
enum Count {
    /// The elements of the published checkpoint, digit for digit.
    Checkpoint,
    /// The published sizes, multiplied out; the publication gives the rounded number.
    Sizes(&'static str),
}
use Count::{Checkpoint, Sizes};

/// Model, what it is published as, and its number of weights.
const MODELS: &[(&str, &str, u64, Count)] = &[
    ("llama2_7b", "meta-llama/Llama-2-7b-hf", 6_738_415_616, Checkpoint),
    ("llama2_13b", "meta-llama/Llama-2-13b-hf", 13_015_864_320, Checkpoint),
    ("llama2_70b", "meta-llama/Llama-2-70b-hf", 68_976_648_192, Checkpoint),
    ("llama3_8b", "meta-llama/Meta-Llama-3-8B", 8_030_261_248, Checkpoint),
    ("llama3_70b", "meta-llama/Meta-Llama-3-70B", 70_553_706_496, Checkpoint),
    ("llama3_1_405b", "meta-llama/Llama-3.1-405B", 405_853_388_800, Checkpoint),
    ("llama3_2_1b", "meta-llama/Llama-3.2-1B", 1_235_814_400, Checkpoint),
    ("qwen2_5_0_5b", "Qwen/Qwen2.5-0.5B", 494_032_768, Checkpoint),
    ("qwen2_5_7b", "Qwen/Qwen2.5-7B", 7_615_616_512, Checkpoint),
    ("qwen2_5_72b", "Qwen/Qwen2.5-72B", 72_706_203_648, Checkpoint),
    ("qwen3_0_6b", "Qwen/Qwen3-0.6B", 596_049_920, Checkpoint),
    ("qwen3_8b", "Qwen/Qwen3-8B", 8_190_735_360, Checkpoint),
    ("qwen3_32b", "Qwen/Qwen3-32B", 32_762_123_264, Checkpoint),
    ("mistral_7b", "mistralai/Mistral-7B-v0.1", 7_241_732_096, Checkpoint),
    ("gpt3_125m", "GPT-3, table 2.1", 125_226_240, Sizes("0.125 B")),
    ("gpt3_350m", "GPT-3, table 2.1", 355_871_744, Sizes("0.35 B")),
    ("gpt3_760m", "GPT-3, table 2.1", 760_300_032, Sizes("0.76 B")),
    ("gpt3_1_3b", "GPT-3, table 2.1", 1_315_723_264, Sizes("1.3 B")),
    ("gpt3_2_7b", "GPT-3, table 2.1", 2_651_553_280, Sizes("2.7 B")),
    ("gpt3_6_7b", "GPT-3, table 2.1", 6_658_404_352, Sizes("6.7 B")),
    ("gpt3_13b", "GPT-3, table 2.1", 12_853_386_240, Sizes("13.0 B")),
    ("gpt3_175b", "GPT-3, table 2.1", 174_604_259_328, Sizes("175.0 B")),
    ("opt_1_3b", "facebook/opt-1.3b", 1_315_758_080, Checkpoint),
    ("opt_6_7b", "facebook/opt-6.7b", 6_658_473_984, Checkpoint),
    ("opt_13b", "facebook/opt-13b", 12_853_473_280, Checkpoint),
    ("opt_30b", "facebook/opt-30b", 29_974_540_288, Checkpoint),
    ("opt_66b", "facebook/opt-66b", 65_719_701_504, Sizes("66.0 B")),
    ("opt_175b", "OPT, table 1", 174_604_468_224, Sizes("175.0 B")),
    ("glm_130b", "GLM-130B", 128_697_794_560, Sizes("130 B")),
    ("phi2", "microsoft/phi-2", 2_779_683_840, Checkpoint),
    ("phi3_mini", "microsoft/Phi-3-mini-4k-instruct", 3_821_079_552, Checkpoint),
    ("phi4", "microsoft/phi-4", 14_659_507_200, Checkpoint),
    ("gemma_2b", "google/gemma-2b", 2_506_172_416, Checkpoint),
    ("gemma_7b", "google/gemma-7b", 8_537_680_896, Checkpoint),
];

/// Published models that the ops of the language do not express, and why.
const ABSENT: &[(&str, &str)] = &[
    ("Mixtral 8x7B", "mixture of experts: a token is sent to some of the feed-forward blocks"),
    ("Qwen3-30B-A3B", "mixture of experts"),
    (
        "DeepSeek-V3",
        "mixture of experts, latent attention with keys wider than values, prediction of several tokens",
    ),
    ("Gemma 2 9B and 27B", "a soft cap on scores and logits, and layers of two kinds by turns"),
];

const RUN: &str =
    "train { seq: 2048, global_batch: 8, micro_batch: 1, precision: f32, optimizer: adamw { lr: 1e-4 } }";

fn with_model(model: &str) -> Spec {
    spec(&format!("{RUN}\npipeline {{ model: std::models::{model}, cluster: std::clusters::local }}")).spec
}

fn with_cluster(cluster: &str) -> Cluster {
    let run = RUN.replace("f32", "f16").replace("seq: 2048", "seq: 64");
    let small = "model small(dim: 32) {
        tokens = input(token, [seq])
        targets = input(token, [seq])
        x = embedding(tokens, vocab: 256, dim: dim)
        repeat 64 { x = x + linear(relu(x), dim) }
        loss = cross_entropy(linear(x, 256), targets)
    }";
    spec(&format!("{run}\n{small}\npipeline {{ model: small, cluster: std::clusters::{cluster} }}"))
        .spec
        .cluster
}

/// Declarations of a file of the library that need no arguments, in its order.
fn declared(path: &str) -> Vec<String> {
    let file = LIBRARY.iter().find(|file| file.path == path).unwrap();
    let parsed = pipe_grammar::parse(file.source, file.text).file;
    let models = parsed.models.iter().map(|model| (&model.name.text, &model.parameters));
    let clusters = parsed.clusters.iter().map(|cluster| (&cluster.name.text, &cluster.parameters));
    models
        .chain(clusters)
        .filter(|(_, parameters)| parameters.iter().all(|parameter| parameter.default.is_some()))
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn library_has_no_faults() {
    for file in LIBRARY {
        assert_eq!(check(&Sources::new(), file.source), [], "{}", file.path);
    }
}

/// The numbers are those of the published checkpoints (recalled, and each reproduced digit for digit from the sizes in
/// its configuration) or, where only a rounded one is published, the product of the published sizes.
#[test]
fn models_have_the_published_number_of_weights() {
    let mut known: Vec<_> = MODELS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let mut table = String::from("| model | published as | weights | published | distinct layers |\n");
    table += "| --- | --- | --- | --- | --- |\n";
    for (name, published, weights, count) in MODELS {
        let model = with_model(name).model;
        assert_eq!(model.weights(), *weights, "{name}");
        let said = match count {
            Checkpoint => "the same, in the checkpoint",
            Sizes(said) => said,
        };
        let layers = model.layers.len();
        writeln!(table, "| `{name}` | {published} | {} | {said} | {layers} |", grouped(*weights)).unwrap();
    }
    document("docs/models.md", "models", &table);
    let mut absent = String::from("| model | what is missing |\n| --- | --- |\n");
    for (name, reason) in ABSENT {
        writeln!(absent, "| {name} | {reason} |").unwrap();
    }
    document("docs/models.md", "absent", &absent);
    let mut shipped = declared("std::models");
    known.sort();
    shipped.sort();
    assert_eq!(known, shipped);
}

#[test]
fn clusters_resolve_to_dense_rates_and_existing_wires() {
    let mut table = String::from(
        "| cluster | devices | memory | bandwidth | f32 | bf16 | direct | to the host | between nodes |\n",
    );
    table += "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for name in declared("std::clusters") {
        let cluster = with_cluster(&name);
        let node = &cluster.nodes[0];
        let device = &node.device;
        let rate = |dtype: DType| {
            let found = device.rates.iter().find(|(other, _)| *other == dtype);
            found.map_or("–".to_owned(), |(_, rate)| rate.to_string())
        };
        let wire = |wire: Option<Wire>| wire.map_or("–".to_owned(), |wire| wire.bandwidth.to_string());
        writeln!(
            table,
            "| `{name}` | {} {} | {} | {} | {} | {} | {} | {} | {} |",
            node.devices,
            device.name,
            device.memory,
            device.bandwidth,
            rate(DType::F32),
            rate(DType::BF16),
            wire(node.device_wire),
            wire(node.host_wire),
            wire(cluster.node_wire),
        )
        .unwrap();
    }
    document("docs/clusters.md", "clusters", &table);
    assert_eq!(with_cluster("rtx4090").nodes[0].device_wire, None);
    assert_eq!(with_cluster("rtx4090 { nodes: 8 }").devices(), 64);
    let rate = |cluster: &str| with_cluster(cluster).nodes[0].device.rates.clone();
    assert!(rate("dgx_1v").iter().all(|(dtype, _)| *dtype != DType::BF16));
    // Half of what data sheets print with sparsity.
    assert!(rate("dgx_h100").contains(&(DType::BF16, FlopsPerSecond(989_400_000_000_000))));
}

/// `6,738,415,616`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
