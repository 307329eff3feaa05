//! The same work in fewer and larger pieces: stages and slices joined.

use super::super::{Cost, Placement, Policy, Problem, Refusal, Schedule};
use super::Effort;
use pipec_program::{Slice, StageId};

/// The same work with `chunks` stages of each copy per device and `slices` slices in another placement: consecutive stages
/// and slices are joined, and their times and memory added; two copies share the micro-batches. None if the stages of the
/// problem are not `chunks` times the devices in equal groups, or the slices not in equal groups.
pub fn coarser(problem: &Problem, placement: Placement, chunks: u32, slices: u32) -> Option<Problem> {
    let p = problem.devices().len() as u32;
    let stages = chunks.checked_mul(p)?;
    let joins = problem.copies() == 1 && stages > 0 && slices > 0;
    if !joins || !problem.depth().is_multiple_of(stages) || !problem.slices().is_multiple_of(slices) {
        return None;
    }
    let (stages_each, slices_each) = (problem.depth() / stages, problem.slices() / slices);
    let mut joined = Problem::uniform(placement, p, chunks, problem.micro_batches(), slices).ok()?;
    joined.set_costs(|stage, slice| {
        let stage = stage.0 % stages;
        let old_stages = (stage * stages_each..(stage + 1) * stages_each).map(StageId);
        let costs = old_stages.flat_map(|stage| {
            let old_slices = (slice.0 * slices_each..(slice.0 + 1) * slices_each).map(Slice);
            old_slices.map(move |slice| (stage, *problem.cost(stage, slice)))
        });
        costs
            .map(|(old, cost)| if old.0 % stages_each == 0 { cost } else { Cost { checkpoint: 0, ..cost } })
            .fold(NOTHING, |sum, cost| Cost {
                forward: sum.forward + cost.forward,
                input: sum.input + cost.input,
                weight: sum.weight + cost.weight,
                backward: sum.backward + cost.backward,
                recompute: sum.recompute + cost.recompute,
                pair: match (sum.pair, cost.pair) {
                    (None, None) => None,
                    (Some(_), _) | (None, Some(_)) => {
                        Some(sum.pair.unwrap_or(sum.apart()) + cost.pair.unwrap_or(cost.apart()))
                    }
                },
                activations: sum.activations + cost.activations,
                released: sum.released + cost.released,
                gradients: sum.gradients + cost.gradients,
                prefix: sum.prefix + cost.prefix,
                checkpoint: sum.checkpoint + cost.checkpoint,
            })
    });
    joined.delay = problem.delay;
    joined.weight_parts = problem.weight_parts;
    joined.caps.clone_from(&problem.caps);
    Some(joined)
}

const NOTHING: Cost = Cost {
    forward: 0,
    input: 0,
    weight: 0,
    backward: 0,
    recompute: 0,
    pair: None,
    activations: 0,
    released: 0,
    gradients: 0,
    prefix: 0,
    checkpoint: 0,
};

/// How many of the coarser problems are searched to the full.
const FULL_SEARCHES: usize = 3;

/// The fastest order found for a problem in a loop or any coarser one: with fewer stages per device, fewer slices, and
/// stages forth and back. All are tried with the least effort, then the best of them with the effort that is asked for. Ties
/// go to fewer slices, then fewer stages, then loops.
///
/// # Errors
/// A device whose memory does not hold one micro-batch.
pub fn explore(problem: &Problem, effort: Effort) -> Result<(Problem, Schedule), Refusal> {
    let mut refusal = Refusal::NotALoop;
    let mut tried: Vec<Ordered> = Vec::new();
    for joined in variants(problem) {
        match Ordered::new(joined, Effort::Least) {
            Ok(ordered) => tried.push(ordered),
            Err(found) => refusal = found,
        }
    }
    // Stable: of equals, the coarser stays first.
    tried.sort_by_key(|ordered| ordered.makespan);
    let mut best: Option<Ordered> = None;
    for (rank, ordered) in tried.into_iter().enumerate() {
        let least = best.as_ref().map_or(u64::MAX, |best| best.makespan);
        let searched =
            if effort > Effort::Least && rank < FULL_SEARCHES && super::bound(&ordered.problem) < least {
                Ordered::new(ordered.problem, effort)?
            } else {
                ordered
            };
        if searched.makespan < least {
            best = Some(searched);
        }
    }
    best.map(|best| (best.problem, best.schedule)).ok_or(refusal)
}

/// A problem with an order.
struct Ordered {
    problem: Problem,
    schedule: Schedule,
    makespan: u64,
}

impl Ordered {
    fn new(problem: Problem, effort: Effort) -> Result<Self, Refusal> {
        let schedule = super::super::order(Policy::Auto(effort), &problem)?;
        let execution = super::execute(&problem, &schedule, |step| problem.duration(step));
        let makespan = execution.map_or(u64::MAX, |execution| execution.makespan());
        Ok(Self { problem, schedule, makespan })
    }
}

/// The problem in all its coarser forms and its own, the coarsest first.
fn variants(problem: &Problem) -> Vec<Problem> {
    let divisors = |number: u32| (1..=number).filter(move |divisor| number.is_multiple_of(*divisor));
    let mut variants = Vec::new();
    for slices in divisors(problem.slices()) {
        for chunks in divisors(problem.chunks()) {
            variants.extend(coarser(problem, Placement::Loop, chunks, slices));
            if chunks > 1 {
                variants.extend(coarser(problem, Placement::Zigzag, chunks, slices));
            }
        }
    }
    variants
}
