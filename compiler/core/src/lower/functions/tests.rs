use super::*;
use crate::graph::build;
use crate::graph::samples;
use crate::mode::{Extent, Form, Forms, ModeId, Variant, VariantId, form};
use crate::rewrite::{self, Rates};
use crate::spec::{Choice, LIBRARY, Model, Optimizer, Sources, resolve};
use pipe_grammar::diagnostic::SourceId;
use pipec_program::id::Id;
use pipec_program::text::print_kernel;
use pipec_program::{Access, Body, BytesPerSecond, FlopsPerSecond, Kernel, Mask, Node, Op, ValueId};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

const FUSED: Wanted = Wanted { fused: true, weights: false, parts: None, recompute: 0 };

/// Of a device on which products take longer than what moves.
const RATES: Rates = Rates {
    compute: FlopsPerSecond(100_000_000_000),
    bandwidth: BytesPerSecond(10_000_000_000),
    host: false,
};

fn forms(model: &Model, sequences: u64, tokens: u64, precision: DType) -> Forms {
    let extent = Extent { sequences, lengths: &[tokens], slice: 0, reach: None };
    let of_layer = |(id, layer)| {
        let (layer, _) = rewrite::layer(&build(layer, precision), &[extent], RATES).unwrap();
        (Variant { layer: id, mode: ModeId(0) }, form(&layer, &layer.modes[ModeId(0)], extent))
    };
    let (variants, forms): (Vec<Variant>, Vec<Form>) = model.layers.iter().map(of_layer).unzip();
    let pieces = model.pieces.iter().map(|piece| VariantId::new(piece.layer.index())).collect();
    Forms { variants: variants.into(), slices: vec![forms.into()].into(), pieces }
}

fn passes(stage: &StageFunctions) -> &SliceFunctions {
    &stage.slices[Slice(0)]
}

fn saved(stage: &StageFunctions) -> Bytes {
    let forward = forward(stage);
    let region = forward.regions.iter().find(|(_, region)| **region == Region::Saved);
    region.map(|(param, _)| forward.function.params[param].bytes).unwrap_or_default()
}

fn forward(stage: &StageFunctions) -> &StageFunction {
    &stage.slices[Slice(0)].forward
}

fn backward(stage: &StageFunctions) -> &StageFunction {
    stage.slices[Slice(0)].backward.fused.as_ref().expect("it was asked for")
}

fn llama(depth: usize, tied: bool) -> Model {
    samples::model(
        samples::llama_embedding(32, 16),
        samples::llama_layer(16, 4, 2, 24, Mask::Causal),
        depth,
        samples::llama_head(32, 16),
        tied,
    )
}

fn gpt(depth: usize, tied: bool) -> Model {
    samples::model(
        samples::gpt_embedding(32, 8, 16),
        samples::gpt_layer(16, 4),
        depth,
        samples::gpt_head(32, 16),
        tied,
    )
}

fn stage(model: &Model, pieces: Range<usize>, precision: DType) -> StageFunctions {
    let functions = stage_functions(model, &forms(model, 2, 8, precision), pieces, "g0", FUSED);
    check(&forward(&functions).function);
    check(&backward(&functions).function);
    functions
}

fn body(function: &Function) -> (&IdVec<ValueId, pipec_program::Value>, &[Kernel]) {
    match &function.body {
        Body::Kernels { values, kernels } => (values, kernels),
        Body::Abstract { .. } => panic!("the functions of a stage have kernels"),
    }
}

/// What must hold of every function: values lie in their regions, aligned; every byte read was written by an earlier
/// kernel or is readable on entry; a result shares no byte with an operand unless the op allows it and they are equal.
fn check(function: &Function) {
    let (values, kernels) = body(function);
    let mut written: Vec<Vec<bool>> =
        function.params.values().map(|param| vec![param.access.reads(); param.bytes.0 as usize]).collect();
    let range = |id: ValueId| {
        let value = &values[id];
        (value.param, value.offset.0 as usize..(value.offset + value.ty.bytes()).0 as usize)
    };
    for (_, value) in values.iter() {
        assert!(value.offset + value.ty.bytes() <= function.params[value.param].bytes);
        assert_eq!(value.offset.0 % 64, 0);
    }
    for kernel in kernels {
        let text = print_kernel(kernel);
        for &input in &kernel.inputs {
            let (param, range) = range(input);
            assert!(
                written[param.index()][range].iter().all(|&byte| byte),
                "{text} reads what was not written"
            );
        }
        for (position, output) in kernel.outputs.iter().enumerate() {
            let (param, bytes) = range(output.value);
            assert!(function.params[param].access.writes(), "{text} writes {}", function.params[param].name);
            let accumulates = function.params[param].access == Access::Accumulate;
            assert!(!accumulates || output.accumulate, "{text} overwrites gradients");
            if output.accumulate {
                assert!(
                    written[param.index()][bytes.clone()].iter().all(|&byte| byte),
                    "{text} adds to nothing"
                );
            }
            let others = kernel.outputs[..position].iter().map(|output| output.value);
            for (other, input) in
                kernel.inputs.iter().map(|&input| (input, true)).chain(others.map(|other| (other, false)))
            {
                let (other_param, other_bytes) = range(other);
                let apart =
                    param != other_param || bytes.end <= other_bytes.start || other_bytes.end <= bytes.start;
                let may = matches!(
                    (&kernel.op, position),
                    (Op::Map { .. } | Op::Rope { .. } | Op::CrossEntropyGrad { .. }, _)
                        | (Op::RmsNorm { .. }, 2)
                        | (Op::LayerNorm { .. }, 3)
                );
                let in_place = input && bytes == other_bytes && !output.accumulate && may;
                assert!(apart || in_place, "{text} shares bytes");
            }
            written[param.index()][bytes].fill(true);
        }
    }
    // Whatever goes out is written.
    for (id, param) in function.params.iter() {
        if param.access == Access::Write {
            for value in values.values().filter(|value| value.param == id) {
                let bytes = value.offset.0 as usize..(value.offset + value.ty.bytes()).0 as usize;
                assert!(written[id.index()][bytes].iter().all(|&byte| byte), "{} is not written", param.name);
            }
        }
    }
}

fn print(function: &StageFunction) -> String {
    let mut text = format!("{}\n", function.function.name);
    for (id, param) in function.function.params.iter() {
        let region = function.regions[id];
        assert_eq!(region.name(), param.name);
        writeln!(text, "{id} {} {} {}", param.name, param.bytes.0, param.access.name()).expect("text");
    }
    for (id, scalar) in function.function.scalars.iter() {
        writeln!(text, "{id} {} {}", scalar.name, scalar.ty.name()).expect("text");
    }
    let (values, kernels) = body(&function.function);
    for (id, value) in values.iter() {
        writeln!(text, "{id} {}+{} {}", function.function.params[value.param].name, value.offset.0, value.ty)
            .expect("text");
    }
    for kernel in kernels {
        writeln!(text, "{}", print_kernel(kernel)).expect("text");
    }
    text
}

#[test]
fn first_stage() {
    let functions = stage(&llama(1, false), 0..2, DType::F32);
    assert!(passes(&functions).input.is_empty());
    insta::assert_snapshot!("first_forward", print(forward(&functions)));
    insta::assert_snapshot!("first_backward", print(backward(&functions)));
}

#[test]
fn last_stage() {
    let functions = stage(&llama(1, false), 2..3, DType::F32);
    assert!(passes(&functions).output.is_empty());
    // The norm, its statistic, the logits and theirs; the input is kept by the caller.
    assert_eq!(saved(&functions), Bytes(16 * 16 * 4 + 64 + 16 * 32 * 4 + 64));
    insta::assert_snapshot!("last_forward", print(forward(&functions)));
    insta::assert_snapshot!("last_backward", print(backward(&functions)));
}

#[test]
fn every_cut_of_every_sample_is_sound() {
    for tied in [false, true] {
        for model in [llama(3, tied), gpt(3, tied)] {
            for precision in [DType::F32, DType::F64, DType::BF16] {
                for first in 0..model.pieces.len() {
                    for end in first + 1..=model.pieces.len() {
                        let functions = stage(&model, first..end, precision);
                        assert_eq!(passes(&functions).input.is_empty(), first == 0);
                        assert_eq!(passes(&functions).output.is_empty(), end == model.pieces.len());
                    }
                }
            }
        }
    }
}

/// The kernels of a stage are those of its pieces: neither the cut nor the neighbours change what is computed.
#[test]
fn a_cut_changes_no_kernel() {
    let model = gpt(3, true);
    let ops = |function: &StageFunction| -> Vec<Op> {
        body(&function.function).1.iter().map(|kernel| kernel.op.clone()).collect()
    };
    let whole = stage(&model, 0..5, DType::F32);
    let parts: Vec<StageFunctions> =
        [0..2, 2..3, 3..5].map(|pieces| stage(&model, pieces, DType::F32)).into();
    let of_parts: Vec<Op> = parts.iter().flat_map(|part| ops(forward(part))).collect();
    assert_eq!(ops(forward(&whole)), of_parts);
    // Scalars are numbered by function; here only dropout has one in the parts without a loss.
    let without_scalars = |mut ops: Vec<Op>| {
        for op in &mut ops {
            if let Op::Map { seed, .. } = op {
                *seed = None;
            }
        }
        ops
    };
    let of_parts: Vec<Op> = parts.iter().rev().flat_map(|part| ops(backward(part))).collect();
    assert_eq!(without_scalars(ops(backward(&whole))), without_scalars(of_parts));
}

#[test]
fn random_sites_of_a_model_differ() {
    let model = gpt(3, false);
    let salts = |functions: &StageFunctions| -> Vec<u64> {
        let (_, kernels) = body(&forward(functions).function);
        let nodes = kernels.iter().flat_map(|kernel| match &kernel.op {
            Op::Map { nodes, .. } => nodes.clone(),
            _ => Vec::new(),
        });
        nodes.filter_map(|node| if let Node::Random { salt } = node { Some(salt) } else { None }).collect()
    };
    assert_eq!(salts(&stage(&model, 0..5, DType::F32)), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(salts(&stage(&model, 2..4, DType::F32)), [3, 4, 5, 6]);
}

#[test]
fn tied_parameters_are_one() {
    let whole = stage(&llama(1, true), 0..3, DType::F32);
    let untied = stage(&llama(1, false), 0..3, DType::F32);
    assert_eq!(whole.parameters.len() + 1, untied.parameters.len());
    assert_eq!(whole.weights + Bytes(32 * 16 * 4), untied.weights);
    // Both uses add to the gradient of the table.
    let (values, kernels) = body(&backward(&whole).function);
    let gradients = backward(&whole).regions.iter().find(|(_, region)| **region == Region::Gradients);
    let gradients = gradients.expect("the stage has parameters").0;
    let adding = kernels.iter().flat_map(|kernel| &kernel.outputs).filter(|output| {
        let value = &values[output.value];
        value.param == gradients && value.offset == Bytes::ZERO && output.accumulate
    });
    assert_eq!(adding.count(), 2);
}

#[test]
fn optimizer_functions() {
    let adam = Optimizer::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let model = llama(1, true);
    let last = stage(&model, 2..3, DType::BF16);
    let update = update_function("update_g1", &last, adam, true).expect("parameters");
    let norm = norm_function("norm_g1", &last, |_| true, model.parameters.len()).expect("parameters");
    let clip = clip_function("clip", model.parameters.len(), 1.0);
    insta::assert_snapshot!([print(&update), print(&norm), print(&clip)].join("\n"));
    let others = norm_function("norm_g1", &last, |parameter| parameter != ParameterId(0), 12);
    assert_eq!(body(&others.expect("the gain").function).1.len(), 1);
    assert!(norm_function("norm_g1", &last, |_| false, 12).is_none());
}

/// Stages of every model of the library: the graphs are sound, and the workspace is at most 5 % above what is live.
#[test]
fn workspaces_of_shipped_models_are_tight() {
    let mut models = 0;
    // The others are models with sizes to be filled in.
    let sized = |line: &&str| {
        let renamed = line.split_once(" = ").is_some_and(|(head, _)| !head.contains('('));
        renamed || line.starts_with("phi2") || line.starts_with("glm_130b")
    };
    let lines = LIBRARY.iter().flat_map(|file| file.text.lines());
    for line in lines.filter_map(|line| line.strip_prefix("model ")).filter(sized) {
        let name: String = line.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
        let text = format!(
            "train {{ seq: 2048, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
            pipeline {{ model: std::models::{name}, cluster: std::clusters::dgx_h100 }}"
        );
        let mut sources = Sources::new();
        sources.add("test.pipe", pipe_grammar::parse(SourceId(0), &text).file);
        let spec = match resolve(&sources, SourceId(0), &Choice::default()) {
            Ok(resolution) => resolution.spec,
            Err(errors) => panic!("{name}: {errors:?}"),
        };
        let forms =
            crate::rewrite::fastest(&spec.model, &spec.train, &[spec.train.seq], Rates::of(&spec)).unwrap();
        for form in forms.all() {
            assert_eq!(crate::mode::verify(form), Vec::<String>::new(), "{name}");
        }
        let end = spec.model.pieces.len();
        for pieces in [0..1, 0..2, 1..2, end / 2..end / 2 + 2, 1..end - 1, 0..end, end - 2..end, end - 1..end]
        {
            let functions = stage_functions(&spec.model, &forms, pieces.clone(), "g0", FUSED);
            for function in [&forward(&functions).function, &backward(&functions).function] {
                let (size, bound) = workspace(function);
                assert!(size.0 as f64 <= bound as f64 * 1.05, "{name} {pieces:?}: {size} for {bound} live");
            }
        }
        models += 1;
    }
    assert!(models > 30, "{models}");
}

/// The size of the workspace, and the most bytes that are live in it at a time: from a value's first writing to its last
/// use, counted by bytes from the function alone.
fn workspace(function: &Function) -> (Bytes, u64) {
    let Some((id, param)) = function.params.iter().find(|(_, param)| param.access == Access::Workspace)
    else {
        return (Bytes::ZERO, 0);
    };
    let (values, kernels) = body(function);
    // The first and the last kernel of every block; values at one place that meet in one kernel are one.
    let mut blocks: Vec<(usize, usize, u64)> = Vec::new();
    let mut newest: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for (time, kernel) in kernels.iter().enumerate() {
        let at = |value: ValueId| {
            let value = &values[value];
            (value.param == id).then(|| (value.offset.0, value.ty.bytes().align_up(64).0))
        };
        let read = kernel.inputs.iter().filter_map(|&input| at(input));
        let added = kernel.outputs.iter().filter(|output| output.accumulate);
        let kept: Vec<_> = added.filter_map(|output| at(output.value)).chain(read).collect();
        for place in kept.iter().copied().chain(kernel.outputs.iter().filter_map(|output| at(output.value))) {
            match newest.get(&place) {
                Some(&block) if kept.contains(&place) || blocks[block].1 == time => blocks[block].1 = time,
                Some(_) | None => {
                    newest.insert(place, blocks.len());
                    blocks.push((time, time, place.1));
                }
            }
        }
    }
    let mut changes = vec![(0, 0); kernels.len() + 1];
    for (first, last, bytes) in blocks {
        changes[first].0 += bytes;
        changes[last + 1].1 += bytes;
    }
    let live = changes.iter().scan(0, |live, (begin, end)| {
        *live = *live + begin - end;
        Some(*live)
    });
    (param.bytes, live.max().unwrap_or(0))
}

/// 126 layers on one stage take hardly longer than as many stages of one.
#[test]
fn deep_stages_are_made_in_linear_time() {
    let kernels = |depth: usize| {
        let model = llama(depth, false);
        let forms = forms(&model, 2, 8, DType::F32);
        let functions = stage_functions(&model, &forms, 0..depth + 2, "g0", FUSED);
        let workspace = workspace(&backward(&functions).function).0;
        (body(&backward(&functions).function).1.len(), workspace)
    };
    let (few, workspace) = kernels(2);
    let (many, deep_workspace) = kernels(126);
    assert_eq!((many - few) % 124, 0);
    // A deeper stage needs no more scratch.
    assert_eq!(workspace, deep_workspace);
}
