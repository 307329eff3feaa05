//! DualPipe and DualPipeV: two directions at once, and a forward pass of one as one block with a backward pass of the
//! other, so that the messages of each hide behind the work of the other (DeepSeek-AI 2024).
//!
//! DualPipe has two copies of the pipeline in opposite directions on p devices; DualPipeV cuts one copy into 2 p stages
//! that go forth and back. Seen from the device where the directions meet, both are one order of eight phases. It needs
//! all its micro-batches: `2 p` of them for p devices.

use super::{Problem, Refusal, Schedule, Step, require};
use pipec_program::id::Id;
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use std::collections::VecDeque;

/// Two copies: an even number of devices, and of micro-batches. A device keeps p + 1 units of 1/p of a micro-batch each, and twice the weights.
pub(super) fn dualpipe(problem: &Problem) -> Result<Schedule, Refusal> {
    require::bidirectional(problem)?;
    require::slices(problem, 1)?;
    let (p, n) = (problem.devices().len() as u32, problem.micro_batches());
    if !p.is_multiple_of(2) {
        return Err(Refusal::OddDevices(p));
    }
    if !n.is_multiple_of(2) {
        return Err(Refusal::OddMicroBatches(n));
    }
    require::micro_batches(problem, 2 * p)?;
    let half = p as usize / 2;
    let device = |(device, stages): (DeviceId, &Vec<StageId>)| {
        let from_end = device.index().min(p as usize - 1 - device.index());
        // The direction that starts at the nearer end comes first.
        let near = usize::from(device.index() >= half);
        let directions = [near, 1 - near].map(|copy| Direction { stage: stages[copy], first: copy, step: 2 });
        Phases::new(directions).run(from_end, half, n as usize / 2)
    };
    Ok(Schedule { devices: problem.devices().iter().map(device).collect() })
}

/// One copy forth and back. A device keeps `2 p + 1` units of 1/(2 p) of a micro-batch each.
pub(super) fn dualpipe_v(problem: &Problem) -> Result<Schedule, Refusal> {
    require::zigzag(problem)?;
    require::chunks(problem, 2)?;
    require::slices(problem, 1)?;
    let (p, n) = (problem.devices().len(), problem.micro_batches());
    require::micro_batches(problem, 2 * p as u32)?;
    let device = |(device, stages): (DeviceId, &Vec<StageId>)| {
        let directions = [stages[0], stages[1]].map(|stage| Direction { stage, first: 0, step: 1 });
        Phases::new(directions).run(device.index(), p, n as usize)
    };
    Ok(Schedule { devices: problem.devices().iter().map(device).collect() })
}

/// The units of one direction on a device.
#[derive(Clone, Copy)]
struct Direction {
    stage: StageId,
    /// Its first micro-batch, and from one to the next.
    first: usize,
    step: usize,
}

impl Direction {
    fn unit(self, position: usize) -> Unit {
        let micro_batch = MicroBatch::new(self.first + position * self.step);
        Unit { stage: self.stage, micro_batch, slice: Slice(0) }
    }
}

/// The steps of a device as they are written.
struct Phases {
    directions: [Direction; 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    waiting: VecDeque<Unit>,
    steps: Vec<Step>,
}

impl Phases {
    fn new(directions: [Direction; 2]) -> Self {
        Self { directions, forwards: [0; 2], backwards: [0; 2], waiting: VecDeque::new(), steps: Vec::new() }
    }

    /// All phases of the device at distance `rank` of `half` devices from the end where direction 0 starts, with `n` units
    /// of each direction.
    fn run(mut self, rank: usize, half: usize, n: usize) -> Vec<Step> {
        let inner = half - 1 - rank;
        for _ in 0..2 * inner {
            self.forward(0);
        }
        for _ in 0..=rank {
            self.forward(0);
            self.forward(1);
        }
        for _ in 0..inner {
            self.backward(1, true);
            self.weight();
            self.forward(1);
        }
        for round in 0..n - 2 * half + rank + 1 {
            if round == 0 && inner == 0 {
                // Where the directions meet, the first forward pass must not wait for the gradient that needs it.
                self.forward(0);
                self.backward(1, false);
            } else {
                self.pair(0, 1);
            }
            self.pair(1, 0);
        }
        for _ in 0..inner {
            self.backward(1, false);
            self.pair(1, 0);
        }
        let mut split = false;
        for round in 0..=rank {
            let middle = round == rank.div_ceil(2);
            split |= middle && rank % 2 == 1;
            self.backward(1, split);
            split |= middle && rank.is_multiple_of(2);
            self.backward(0, split);
        }
        for _ in 0..inner {
            self.weight();
            self.backward(0, true);
        }
        while !self.waiting.is_empty() {
            self.weight();
        }
        self.steps
    }

    fn take(count: &mut [usize; 2], directions: [Direction; 2], direction: usize) -> Unit {
        let unit = directions[direction].unit(count[direction]);
        count[direction] += 1;
        unit
    }

    fn forward(&mut self, direction: usize) {
        let unit = Self::take(&mut self.forwards, self.directions, direction);
        self.steps.push(Step::Pass(Pass::F, unit));
    }

    fn backward(&mut self, direction: usize, split: bool) {
        let unit = Self::take(&mut self.backwards, self.directions, direction);
        if split {
            self.steps.push(Step::Pass(Pass::B, unit));
            self.waiting.push_back(unit);
        } else {
            self.steps.push(Step::Pass(Pass::BW, unit));
        }
    }

    fn pair(&mut self, forward: usize, backward: usize) {
        let forward = Self::take(&mut self.forwards, self.directions, forward);
        let backward = Self::take(&mut self.backwards, self.directions, backward);
        self.steps.push(Step::Pair { forward, backward, pass: Pass::BW });
    }

    fn weight(&mut self) {
        self.steps.extend(self.waiting.pop_front().map(|unit| Step::Pass(Pass::W, unit)));
    }
}
