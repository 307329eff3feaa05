use super::*;
use crate::mode::{Form, Kind, ModeId, Value as FormValue, Variant, VariantId};
use crate::spec::*;
use pipec_program::id::IdVec;
use pipec_program::{
    Bytes, BytesPerSecond, DType, FlopsPerSecond, Kernel, LearningRate, Op, Output, TensorType, ValueId,
};

/// A spec whose layers do nothing but what their forms say.
fn spec(layers: usize, stages: u32, devices: u32, schedule: Schedule, cut: Cut) -> Spec {
    let layer = |name: &str| Layer {
        name: name.to_owned(),
        slots: IdVec::new(),
        values: IdVec::new(),
        inputs: Vec::new(),
        operations: Vec::new(),
        outputs: Vec::new(),
    };
    let piece = |name: String, layer| Piece { name, layer, parameters: IdVec::new() };
    let mut pieces = vec![piece("embedding".to_owned(), LayerId(0))];
    pieces.extend((0..layers).map(|index| piece(format!("layer.{index}"), LayerId(1))));
    pieces.push(piece("head".to_owned(), LayerId(2)));
    Spec {
        model: Model {
            name: "chain".to_owned(),
            parameters: IdVec::new(),
            layers: ["embedding", "layer", "head"].into_iter().map(layer).collect(),
            pieces,
            vocab: 256,
        },
        cluster: Cluster {
            name: "local".to_owned(),
            nodes: vec![Node {
                devices,
                device: DeviceKind {
                    name: "cpu".to_owned(),
                    memory: Bytes(1 << 30),
                    bandwidth: BytesPerSecond(1_000_000_000),
                    rates: vec![(DType::F32, FlopsPerSecond(1_000_000_000))],
                    threads: 1,
                },
                host_memory: Bytes(1 << 30),
                host_cores: 4,
                host_bandwidth: BytesPerSecond(20_000_000_000),
                host_wire: None,
                device_wire: None,
            }],
            node_wire: None,
        },
        train: Train {
            seq: 8,
            global_batch: 4,
            micro_batch: 1,
            precision: DType::F32,
            gradients: crate::spec::Sums::Wide,
            clip_norm: None,
            optimizer: Optimizer::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
            optimizer_state: crate::spec::OptimizerState::Copied,
            learning_rate: LearningRate::Constant { rate: 1e-3 },
            steps: None,
            seed: 1,
            data: None,
        },
        pipeline: Pipeline {
            stages,
            devices,
            micro_batches: 4,
            cut,
            schedule,
            given: None,
            balance: 0,
            recompute: Recompute::default(),
            offload: Offload::default(),
            state: State::default(),
            replicas: 1,
        },
        without: std::collections::BTreeSet::new(),
    }
}

/// Layers that move so many kilobytes, at 1 us each, and twice that backward.
fn forms(kilobytes: [u64; 3], layers: usize) -> Forms {
    let form = |kilobytes: u64| {
        let ty = TensorType::new(DType::F32, &[kilobytes * 125]);
        let value = |name: &str| FormValue { name: name.to_owned(), ty: ty.clone(), kind: Kind::Computed };
        let kernel = Kernel {
            op: Op::Softmax,
            inputs: vec![ValueId(0)],
            outputs: vec![Output { value: ValueId(1), accumulate: false }],
        };
        Form {
            name: "layer".to_owned(),
            precision: DType::F32,
            gradients: DType::F32,
            values: ["x", "y"].map(value).to_vec().into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            output_gradients: Vec::new(),
            input_gradients: Vec::new(),
            forward: vec![kernel.clone()],
            backward: vec![(crate::mode::Phase::B, kernel.clone()), (crate::mode::Phase::W, kernel)],
            state: Vec::new(),
            prefix: Vec::new(),
            random_sites: 0,
        }
    };
    let variants = [0, 1, 2].map(|layer| Variant { layer: LayerId(layer), mode: ModeId(0) });
    let mut pieces = vec![VariantId(1); layers + 2];
    (pieces[0], pieces[layers + 1]) = (VariantId(0), VariantId(2));
    Forms {
        variants: variants.to_vec().into(),
        slices: vec![kilobytes.map(form).to_vec().into()].into(),
        pieces,
    }
}

fn planned(spec: &Spec, kilobytes: [u64; 3]) -> String {
    match plan(spec, &forms(kilobytes, spec.model.pieces.len() - 2), &Origins::default()) {
        Ok(plan) => super::print(&plan, &spec.model),
        Err(errors) => {
            let text = |error: &Diagnostic| {
                let help = error.help.as_deref().unwrap_or_default();
                format!("{} {}\n  {}\n  help: {help}\n", error.code, error.message, error.labels[0].text)
            };
            errors.iter().map(text).collect()
        }
    }
}

#[test]
fn a_balanced_cut_counts_embedding_and_head() {
    let spec = spec(8, 4, 4, Schedule::OneFOneB, Cut::Balanced);
    insta::assert_snapshot!(planned(&spec, [1, 10, 15]), @r"
    micro_batches 4, slices 1
    g0 d0 embedding .. layer.1 (3): forward 21.0 us, backward 42.0 us
    g1 d1 layer.2 .. layer.3 (2): forward 20.0 us, backward 40.0 us
    g2 d2 layer.4 .. layer.6 (3): forward 30.0 us, backward 60.0 us
    g3 d3 layer.7 .. head (2): forward 25.0 us, backward 50.0 us
    ");
}

#[test]
fn chunks_loop_over_the_devices() {
    let spec = spec(8, 4, 2, Schedule::Interleaved { virtual_stages: 2, group: 2 }, Cut::Balanced);
    insta::assert_snapshot!(planned(&spec, [1, 10, 15]), @r"
    micro_batches 4, slices 1
    g0 d0 embedding .. layer.1 (3): forward 21.0 us, backward 42.0 us
    g1 d1 layer.2 .. layer.3 (2): forward 20.0 us, backward 40.0 us
    g2 d0 layer.4 .. layer.6 (3): forward 30.0 us, backward 60.0 us
    g3 d1 layer.7 .. head (2): forward 25.0 us, backward 50.0 us
    ");
}

#[test]
fn an_explicit_cut_is_taken_as_it_is() {
    let spec = spec(8, 4, 4, Schedule::OneFOneB, Cut::Layers(vec![0, 6, 2, 0]));
    insta::assert_snapshot!(planned(&spec, [1, 10, 15]), @r"
    micro_batches 4, slices 1
    g0 d0 embedding (1): forward 1.00 us, backward 2.00 us
    g1 d1 layer.0 .. layer.5 (6): forward 60.0 us, backward 120 us
    g2 d2 layer.6 .. layer.7 (2): forward 20.0 us, backward 40.0 us
    g3 d3 head (1): forward 15.0 us, backward 30.0 us
    ");
}

#[test]
fn every_wrong_cut_says_so() {
    let error = |layers, stages, devices, schedule, cut| {
        planned(&spec(layers, stages, devices, schedule, cut), [1; 3])
    };
    let interleaved = Schedule::Interleaved { virtual_stages: 2, group: 2 };
    insta::assert_snapshot!(error(1, 4, 4, Schedule::OneFOneB, Cut::Balanced), @r"
    E0601 4 stages for 3 pieces of model `chain`
      a stage needs a piece, and the model has 3 pieces: embedding, 1 layer, head
      help: use at most 3 stages
    ");
    insta::assert_snapshot!(error(8, 4, 2, Schedule::OneFOneB, Cut::Balanced), @r"
    E0603 4 stages do not fit 2 devices
      4 stages here
      help: `one_f_one_b` runs 1 per device: use 2 stages
    ");
    insta::assert_snapshot!(error(8, 3, 2, Schedule::GPipe, Cut::Balanced), @r"
    E0603 3 stages do not fit 2 devices
      3 stages here
      help: `gpipe` runs 1 per device: use 2 stages
    ");
    insta::assert_snapshot!(error(8, 2, 2, interleaved, Cut::Balanced), @r"
    E0603 2 stages do not fit 2 devices
      2 stages here
      help: `interleaved` runs 2 per device: use 4 stages
    ");
    insta::assert_snapshot!(error(8, 4, 4, Schedule::OneFOneB, Cut::Layers(vec![2, 2, 2])), @r"
    E0604 a cut for 3 stages in a pipeline of 4 stages
      3 numbers
      help: write 4 numbers, one for each stage
    E0604 a cut of 6 layers for a model of 8
      these add up to 6
      help: the numbers must add up to 8; the pieces before and after the layers are not counted
    ");
    insta::assert_snapshot!(error(8, 4, 4, Schedule::OneFOneB, Cut::Layers(vec![4, 0, 0, 4])), @r"
    E0602 stage 1 has no layers
      the number of stage 1 is 0
      help: give it at least 1 layer; only the first and the last stage hold pieces besides
    E0602 stage 2 has no layers
      the number of stage 2 is 0
      help: give it at least 1 layer; only the first and the last stage hold pieces besides
    ");
}

#[test]
fn every_piece_is_placed_once() {
    for layers in 0..12usize {
        for devices in 1..=6u32 {
            for chunks in 1..=3u32 {
                let stages = devices * chunks;
                let schedule = Schedule::Interleaved { virtual_stages: chunks, group: devices };
                let spec = spec(layers, stages, devices, schedule, Cut::Balanced);
                let result =
                    plan(&spec, &forms([3, 10, 7], spec.model.pieces.len() - 2), &Origins::default());
                if stages as usize > layers + 2 {
                    assert_eq!(result.unwrap_err()[0].code, Code::TooManyStages);
                    continue;
                }
                let plan = result.unwrap();
                let pieces: Vec<usize> =
                    plan.stages.values().flat_map(|stage| stage.pieces.clone()).collect();
                assert!(pieces.into_iter().eq(0..layers + 2));
                assert!(plan.stages.values().all(|stage| !stage.pieces.is_empty()));
                let mut placed: Vec<StageId> = plan.devices.values().flatten().copied().collect();
                placed.sort();
                assert!(placed.into_iter().eq(plan.stages.ids()));
                for (device, chunks) in plan.devices.iter() {
                    assert!(chunks.iter().all(|&stage| plan.stages[stage].device == device));
                }
            }
        }
    }
}
