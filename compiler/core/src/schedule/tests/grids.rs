//! One small grid of every policy, to be read.

use super::*;

#[test]
fn every_policy_looks_like_this() {
    let grid = |policy: Policy, p, chunks, n, s| {
        let problem = Problem::uniform(policy.placement(), p, chunks, n, s).unwrap();
        print(&problem, &ordered(policy, &problem))
    };
    let mut text = String::new();
    let mut show = |name: &str, policy, [p, chunks, n, s]: [u32; 4]| {
        text += &format!("{name}, {n} micro-batches\n{}\n", grid(policy, p, chunks, n, s));
    };
    let svpp = |in_flight, weight_grads| Policy::Svpp(Svpp { in_flight, weight_grads, ..Svpp::FUSED });
    show("gpipe", Policy::GPipe, [2, 1, 3, 1]);
    show("breadth_first", Policy::BreadthFirst, [2, 2, 3, 1]);
    show("terapipe, 2 slices", Policy::TeraPipe, [2, 1, 2, 2]);
    show("one_f_one_b", Policy::OneFOneB, [3, 1, 4, 1]);
    show("interleaved", Policy::Interleaved { group: None }, [2, 2, 4, 1]);
    show("seq1f1b, 2 slices", Policy::Seq1F1B, [2, 1, 3, 2]);
    show("seq1f1b, 2 slices, 2 stages per device", Policy::Seq1F1B, [2, 2, 2, 2]);
    show("slimpipe, 2 slices", Policy::SlimPipe, [2, 2, 2, 2]);
    show("svpp, 2 slices", svpp(None, WeightGrads::Fused), [2, 2, 2, 2]);
    show("svpp, 2 slices, split weight gradients", svpp(None, WeightGrads::Split), [2, 2, 2, 2]);
    show("svpp, 2 slices, 4 units alive", svpp(Some(4), WeightGrads::Fused), [2, 2, 2, 2]);
    show("zb_h1", Policy::ZbH1, [3, 1, 4, 1]);
    show("zb_h2", Policy::ZbH2, [3, 1, 6, 1]);
    show("zb_v", Policy::ZbV, [2, 2, 4, 1]);
    show("v_half", Policy::VHalf, [3, 2, 4, 1]);
    show("v_min", Policy::VMin, [3, 2, 4, 1]);
    show("dualpipe", Policy::DualPipe, [4, 1, 8, 1]);
    show("dualpipe_v", Policy::DualPipeV, [2, 2, 4, 1]);
    show("chimera", Policy::Chimera, [4, 1, 4, 1]);
    show("hanayo", Policy::Hanayo, [2, 2, 3, 1]);
    insta::assert_snapshot!("grids", text);
}

#[test]
fn products_of_weight_gradients_fill_the_gaps() {
    let mut problem = uniform(2, 1, 2, 1);
    problem.weight_parts = 3;
    problem.set_costs(|_, _| Cost { forward: 3, input: 3, weight: 3, backward: 6, ..Cost::UNIT });
    let options = Svpp { weight_grads: WeightGrads::PerGemm, ..Svpp::FUSED };
    let schedule = ordered(Policy::Svpp(options), &problem);
    assert_eq!(verify(&problem, &schedule), []);
    insta::assert_snapshot!("products", print(&problem, &schedule));
}
