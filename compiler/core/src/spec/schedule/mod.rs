//! The schedule of a pipeline: its name and options, or the file that gives it.

mod read;

pub(super) use read::{Wish, read, small};

use pipec_program::Bytes;

/// The order of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// Several stages per device in rounds.
    Interleaved {
        /// Stages per device v.
        virtual_stages: u32,
        /// Micro-batches that pass a stage in a row; the number of devices unless the file says otherwise.
        group: u32,
    },
    /// GPipe on several stages per device.
    BreadthFirst {
        /// Stages per device v.
        virtual_stages: u32,
    },
    /// GPipe on slices.
    TeraPipe {
        /// Slices of a sequence s.
        slices: u32,
    },
    /// One forward, one backward, on slices.
    Seq1F1B {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
    },
    /// As many slices as devices, or a multiple.
    SlimPipe {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
    },
    /// Slices, several stages per device and a limit of memory: MEPipe.
    Svpp {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
        /// The most units alive on a device.
        in_flight: InFlight,
        /// Forward passes of the warm-up per hop to the last device, in hundredths from 100 to 200.
        bias: u16,
        /// How weight gradients are computed.
        weight_grads: WeightGrads,
    },
    /// Split backward passes in the memory of 1F1B.
    ZbH1,
    /// Split backward passes in twice the memory.
    ZbH2,
    /// Split backward passes, two stages per device forth and back.
    ZbV,
    /// The same in half the memory.
    VHalf,
    /// The same in a third of the memory.
    VMin,
    /// Two copies in opposite directions, forward and backward passes in pairs.
    DualPipe,
    /// One copy forth and back, forward and backward passes in pairs.
    DualPipeV,
    /// Two copies in opposite directions.
    Chimera,
    /// Waves over the devices.
    Hanayo {
        /// Waves w, of two stages per device each.
        waves: u32,
    },
    /// All micro-batches of a stage before the next stage of the device, with state on the host (Feng et al. 2023).
    Mobius {
        /// Stages per device v.
        virtual_stages: u32,
        /// When the host updates.
        updates: Updates,
    },
    /// The same with a cut of its own for each direction, so that both travel the devices the same way (Ryu et al. 2025).
    SPipe {
        /// Forward stages per device; as many as make the step shortest without it.
        forward: Option<u32>,
        /// Backward stages per device; without it as many as make them as long as forward stages, or with these the step shortest.
        backward: Option<u32>,
        /// When the host updates.
        updates: Updates,
    },
    /// The fastest order that is found.
    Auto {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
        /// The most memory of a device; all that it has without it.
        memory: Option<MemoryLimit>,
        /// How long to search, 0 to 3.
        effort: u8,
    },
    /// The order that a file gives: the `given` of the pipeline.
    From {
        /// Stages per device and copy v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
        /// Where its stages stand.
        placement: Placement,
    },
}

/// When the host updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// A stage when its gradients are there.
    Async,
    /// All stages when the last gradients are there.
    Sync,
}

/// How many units may be alive on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many as full speed takes.
    Max,
    /// As many as the memory of each device holds.
    Auto,
    /// So many.
    Units(u32),
}

/// The most memory that a schedule may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// All memory of a device together.
    Device(Bytes),
    /// The activations alone, in thousandths of A, the activations of one micro-batch over the whole model.
    Activations(u32),
}

/// How weight gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightGrads {
    /// With the input gradients, in one pass.
    Fused,
    /// In a pass of their own.
    Split,
    /// GEMM by GEMM.
    PerGemm,
}

/// Where the stages of a pipeline stand on `p` devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Stage g on device `g mod p`.
    Loop,
    /// As a loop that turns round after every `p` stages: chunk c of device r is stage `c p + r`, for odd c
    /// `c p + p - 1 - r`.
    Zigzag,
    /// Two copies of a loop, the second on the devices in reverse order.
    Bidirectional,
}

impl Updates {
    /// The spelling in the language.
    fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }
}

impl Placement {
    /// Copies of the pipeline.
    pub fn copies(self) -> u32 {
        match self {
            Self::Loop | Self::Zigzag => 1,
            Self::Bidirectional => 2,
        }
    }
}

impl Schedule {
    /// The name in the language.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "one_f_one_b",
            Self::Interleaved { .. } => "interleaved",
            Self::BreadthFirst { .. } => "breadth_first",
            Self::TeraPipe { .. } => "terapipe",
            Self::Seq1F1B { .. } => "seq1f1b",
            Self::SlimPipe { .. } => "slimpipe",
            Self::Svpp { .. } => "svpp",
            Self::ZbH1 => "zb_h1",
            Self::ZbH2 => "zb_h2",
            Self::ZbV => "zb_v",
            Self::VHalf => "v_half",
            Self::VMin => "v_min",
            Self::DualPipe => "dualpipe",
            Self::DualPipeV => "dualpipe_v",
            Self::Chimera => "chimera",
            Self::Hanayo { .. } => "hanayo",
            Self::Mobius { .. } => "mobius",
            Self::SPipe { .. } => "spipe",
            Self::Auto { .. } => "auto",
            Self::From { .. } => "from",
        }
    }

    /// Stages of each copy on each device.
    pub fn virtual_stages(self) -> u32 {
        match self {
            Self::GPipe
            | Self::OneFOneB
            | Self::TeraPipe { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::DualPipe
            | Self::Chimera => 1,
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV => 2,
            Self::Interleaved { virtual_stages, .. }
            | Self::BreadthFirst { virtual_stages }
            | Self::Seq1F1B { virtual_stages, .. }
            | Self::SlimPipe { virtual_stages, .. }
            | Self::Svpp { virtual_stages, .. }
            | Self::Auto { virtual_stages, .. }
            | Self::From { virtual_stages, .. } => virtual_stages,
            Self::Mobius { virtual_stages, .. } => virtual_stages,
            Self::SPipe { forward, .. } => forward.unwrap_or(1),
            Self::Hanayo { waves } => waves.saturating_mul(2),
        }
    }

    /// Slices of a sequence.
    pub fn slices(self) -> u32 {
        match self {
            Self::TeraPipe { slices }
            | Self::Seq1F1B { slices, .. }
            | Self::SlimPipe { slices, .. }
            | Self::Svpp { slices, .. }
            | Self::Auto { slices, .. }
            | Self::From { slices, .. } => slices,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved { .. }
            | Self::BreadthFirst { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbV
            | Self::VHalf
            | Self::VMin
            | Self::DualPipe
            | Self::DualPipeV
            | Self::Chimera
            | Self::Hanayo { .. }
            | Self::Mobius { .. }
            | Self::SPipe { .. } => 1,
        }
    }

    /// Whether the schedule is made for state on the host.
    pub fn is_of_host(self) -> bool {
        match self {
            Self::Mobius { .. } | Self::SPipe { .. } => true,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved { .. }
            | Self::BreadthFirst { .. }
            | Self::TeraPipe { .. }
            | Self::Seq1F1B { .. }
            | Self::SlimPipe { .. }
            | Self::Svpp { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbV
            | Self::VHalf
            | Self::VMin
            | Self::DualPipe
            | Self::DualPipeV
            | Self::Chimera
            | Self::Hanayo { .. }
            | Self::Auto { .. }
            | Self::From { .. } => false,
        }
    }

    /// Where stages stand.
    pub fn placement(self) -> Placement {
        match self {
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV | Self::Hanayo { .. } => Placement::Zigzag,
            Self::DualPipe | Self::Chimera => Placement::Bidirectional,
            Self::From { placement, .. } => placement,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved { .. }
            | Self::BreadthFirst { .. }
            | Self::TeraPipe { .. }
            | Self::Seq1F1B { .. }
            | Self::SlimPipe { .. }
            | Self::Svpp { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::Mobius { .. }
            | Self::SPipe { .. }
            | Self::Auto { .. } => Placement::Loop,
        }
    }

    /// The schedule as printed: its name and options.
    pub(super) fn print(self) -> String {
        let name = self.name();
        match self {
            Self::Interleaved { virtual_stages, group } => {
                format!("{name} virtual {virtual_stages} group {group}")
            }
            Self::BreadthFirst { virtual_stages } => format!("{name} virtual {virtual_stages}"),
            Self::Mobius { virtual_stages, updates } => {
                format!("{name} virtual {virtual_stages} optimizer {}", updates.name())
            }
            Self::SPipe { forward, backward, updates } => {
                let updates = updates.name();
                let stages = |wish: Option<u32>| wish.map_or("auto".to_owned(), |stages| stages.to_string());
                format!(
                    "{name} forward {} backward {} optimizer {updates}",
                    stages(forward),
                    stages(backward)
                )
            }
            Self::TeraPipe { slices } => format!("{name} slices {slices}"),
            Self::Seq1F1B { virtual_stages, slices } | Self::SlimPipe { virtual_stages, slices } => {
                format!("{name} virtual {virtual_stages} slices {slices}")
            }
            Self::Svpp { virtual_stages, slices, in_flight, bias, weight_grads } => {
                let in_flight = match in_flight {
                    InFlight::Max => "max".to_owned(),
                    InFlight::Auto => "auto".to_owned(),
                    InFlight::Units(units) => units.to_string(),
                };
                let (whole, hundredths) = (bias / 100, bias % 100);
                let weight_grads = match weight_grads {
                    WeightGrads::Fused => "fused",
                    WeightGrads::Split => "split",
                    WeightGrads::PerGemm => "per_gemm",
                };
                format!(
                    "{name} virtual {virtual_stages} slices {slices} in_flight {in_flight} bias {whole}.{hundredths:02} weight_grads {weight_grads}"
                )
            }
            Self::Hanayo { waves } => format!("{name} waves {waves}"),
            Self::Auto { virtual_stages, slices, memory, effort } => {
                let memory = match memory {
                    None => String::new(),
                    Some(MemoryLimit::Device(bytes)) => format!("memory {bytes} "),
                    Some(MemoryLimit::Activations(part)) => {
                        format!("memory {}.{:03} A ", part / 1000, part % 1000)
                    }
                };
                format!("{name} virtual {virtual_stages} slices {slices} {memory}effort {effort}")
            }
            Self::From { virtual_stages, slices, placement: _ } => {
                format!("{name} virtual {virtual_stages} slices {slices}")
            }
            Self::GPipe
            | Self::OneFOneB
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbV
            | Self::VHalf
            | Self::VMin
            | Self::DualPipe
            | Self::DualPipeV
            | Self::Chimera => name.to_owned(),
        }
    }
}
