//! The command line as it is written: one type per command, read by clap. What the arguments mean is the business of
//! [`crate::commands`].

use crate::snapshot::Part;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Compiles `.pipe` files to pipeline programs, shows, simulates and runs them.
#[derive(Debug, Parser)]
#[command(
    name = "pipec",
    version,
    about,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to write diagnostics.
    #[arg(long, global = true, value_enum, default_value_t = ErrorFormat::Human)]
    pub error_format: ErrorFormat,
    /// When to colour diagnostics and progress; NO_COLOR is respected.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
}

/// How to write diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ErrorFormat {
    /// With the source line, for people.
    Human,
    /// One line each: `file:line:column: error[E0102]: message`.
    Short,
    /// One JSON object a line.
    Json,
    /// Annotations of GitHub's actions: `::error file=..,line=..::message`.
    Github,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// When standard error is a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compiles a file and reports every error in it.
    Check(CheckArguments),
    /// Compiles a file and writes a form of it.
    Build(BuildArguments),
    /// Predicts step time, bubble and peak memory.
    Simulate(SimulateArguments),
    /// Keeps what files compile to in goldens beside them, and tells what has changed.
    Snap(SnapArguments),
    /// Tells what two files compile to differently.
    Diff(DiffArguments),
    /// Lists the modes of every layer, which stages take which, and what stands against faster ones.
    Modes(ModesArguments),
    /// Draws the timeline of a step.
    Show(ShowArguments),
    /// Trains the model.
    Run(RunArguments),
    /// Measures every function of a program on this machine, for `simulate` and `show`.
    Profile(ProfileArguments),
    /// Checks a `.pprog` file.
    Verify(VerifyArguments),
    /// Lays out `.pipe` files in the canonical way.
    Fmt(FmtArguments),
    /// Orders the passes of a pipeline without a model.
    Schedule(Box<ScheduleArguments>),
    /// Explains an error code.
    Explain(ExplainArguments),
}

/// A `.pipe` or `.pprog` file and the choice of what to take from it.
#[derive(Clone, Debug, Args)]
pub struct Input {
    /// A `.pipe` file, or a `.pprog` file where a program is enough; `-` reads `.pipe` text from standard input.
    pub file: PathBuf,
    #[command(flatten)]
    /// The choice among its declarations.
    pub choice: Choice,
}

/// Which declarations to take where a file has several, and overrides of its pipeline.
#[derive(Clone, Debug, Default, Args)]
pub struct Choice {
    /// The pipeline to compile.
    #[arg(long, value_name = "NAME")]
    pub pipeline: Option<String>,
    /// The model to compile instead of the one that the pipeline names.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The cluster to compile for instead of the one that the pipeline names.
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The training run instead of the one that the pipeline names.
    #[arg(long, value_name = "NAME")]
    pub train: Option<String>,
    /// Rules of fusion to leave out, by their names in docs/rules.md, to see what they are worth.
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = fusion_rules())]
    pub without: Vec<String>,
}

/// The names of the rules that can be left out.
fn fusion_rules() -> PossibleValuesParser {
    PossibleValuesParser::new(pipec_compiler::rewrite::fusion().iter().map(|rule| rule.name))
}

/// `pipec check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// What to check.
    #[command(flatten)]
    pub input: Input,
}

/// `pipec build`.
#[derive(Debug, Args)]
pub struct BuildArguments {
    /// What to compile.
    #[command(flatten)]
    pub input: Input,
    /// Which form to write.
    #[arg(long, value_enum, default_value_t = Emit::Program)]
    pub emit: Emit,
    /// With `--emit=torch-csv`, write what the file has words for, and leave out the rest.
    #[arg(long)]
    pub lossy: bool,
    /// Where to write; `-` for standard output. Without it a program goes to a `.pprog` file beside the source, and
    /// every other form to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Report the time of every stage of the compiler on standard error.
    #[arg(long)]
    pub timings: bool,
}

/// The forms that `build` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// The syntax tree.
    Ast,
    /// What was meant, every name and number resolved.
    Spec,
    /// What every distinct layer computes, forward and backward.
    Graph,
    /// The ways to compute every distinct layer that are worth it: what each keeps and what it computes again.
    Modes,
    /// The kernels of every distinct layer over each slice.
    Kernels,
    /// Stages and their place.
    Plan,
    /// The passes of every device in order.
    Schedule,
    /// The same as JSON, with times in nanoseconds and memory in bytes.
    ScheduleJson,
    /// The same as PyTorch's pipeline CSV, passes only.
    TorchCsv,
    /// The program.
    Program,
    /// The simulated timeline as JSON.
    Timeline,
}

/// `pipec modes`.
#[derive(Debug, Args)]
pub struct ModesArguments {
    /// What to compile.
    #[command(flatten)]
    pub input: Input,
}

/// `pipec simulate`.
#[derive(Debug, Args)]
pub struct SimulateArguments {
    /// What to simulate.
    #[command(flatten)]
    pub input: Input,
    /// Measured costs, as `pipec profile` writes them, instead of the rates of the cluster.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pipec snap`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SnapArguments {
    /// What to do instead of keeping what is not kept yet.
    #[command(subcommand)]
    pub action: Option<SnapAction>,
    /// What to keep.
    #[command(flatten)]
    pub target: Option<SnapTarget>,
}

/// What `pipec snap` does with goldens that are there.
#[derive(Debug, Subcommand)]
pub enum SnapAction {
    /// Compares, changes nothing, and fails where a file compiles to something else than its golden says.
    Check(SnapTarget),
    /// Makes pending snapshots the goldens.
    Accept(SnapFiles),
}

/// The files of `pipec snap` and what to take of them. It is flattened as a whole or not at all, so that it can have no
/// further group of arguments in it.
#[derive(Clone, Debug, Args)]
pub struct SnapTarget {
    /// `.pipe` files, every pipeline of each, or `.pprog` files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Only goldens whose path contains this text, such as `@NAME.snap` for pipelines of one name.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// What to keep; what is kept already by default, or the schedule and the memory.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub what: Vec<Part>,
}

/// The files of `pipec snap accept`.
#[derive(Clone, Debug, Args)]
pub struct SnapFiles {
    /// `.pipe` files, every pipeline of each, or `.pprog` files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Only goldens whose path contains this text, such as `@NAME.snap` for pipelines of one name.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
}

/// `pipec diff`.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// A `.pipe` file, `FILE@NAME` for one of several pipelines in it, a `.pprog` file or a `.snap` file.
    pub before: PathBuf,
    /// The same, to compare it with.
    pub after: PathBuf,
    /// What to compare; the schedule and the memory by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub what: Vec<Part>,
}

/// `pipec show`.
#[derive(Debug, Args)]
pub struct ShowArguments {
    /// What to draw.
    #[command(flatten)]
    pub input: Input,
    /// How to draw.
    #[arg(long, value_enum, default_value_t = Picture::Grid)]
    pub format: Picture,
    /// Where to write; standard output without it.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Measured costs, as `pipec profile` writes them, instead of the rates of the cluster.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// A measured timeline, as `pipec run --trace` writes it, to lay over the simulated one.
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Columns of the text grid.
    #[arg(long, default_value_t = 100)]
    pub width: usize,
}

/// How `show` draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// A text grid in time: devices down, time across.
    Grid,
    /// A text grid with one column per pass, as in papers.
    Units,
    /// One SVG file without scripts.
    Svg,
    /// A trace in the JSON form of Chrome and Perfetto.
    Trace,
    /// Tables of time and memory.
    Table,
}

/// `pipec run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// What to train.
    #[command(flatten)]
    pub input: Input,
    /// Steps to train to, instead of those of the file.
    #[arg(long)]
    pub steps: Option<u64>,
    /// What computes.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// A folder for checkpoints and metrics; nothing is saved without it.
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Steps between checkpoints; one at the end is always written.
    #[arg(long, value_name = "STEPS", requires = "save")]
    pub save_every: Option<u64>,
    /// Goes on from the newest checkpoint in this folder, or from this checkpoint.
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Appends one JSON object a step to this file.
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Writes the measured timeline of the last step as JSON, for `show --measured`.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Fills arenas with a pattern first and reports how many bytes were touched.
    #[arg(long)]
    pub measure_memory: bool,
    /// Write no progress line.
    #[arg(short, long)]
    pub quiet: bool,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// Machine code on threads of this machine.
    Cpu,
    /// A slow and obvious interpreter.
    Reference,
}

/// `pipec profile`.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    /// What to measure.
    #[command(flatten)]
    pub input: Input,
    /// Where to write the costs; standard output without it.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Steps to measure, after one to warm up.
    #[arg(long, default_value_t = 5)]
    pub steps: u64,
}

/// `pipec verify`.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// A `.pprog` file; `-` for standard input.
    pub file: PathBuf,
}

/// `pipec fmt`.
#[derive(Debug, Args)]
pub struct FmtArguments {
    /// The files to lay out; `-` formats standard input to standard output.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Change nothing; fail and name the files that would change.
    #[arg(long)]
    pub check: bool,
}

/// `pipec schedule`.
#[derive(Debug, Args)]
pub struct ScheduleArguments {
    /// The policy: a name, `auto` for the fastest order that is found, `all` for a table of all of them, or `given` for
    /// the order that the problem file holds.
    #[arg(long, value_name = "NAME", default_value = "one_f_one_b")]
    pub policy: String,
    /// A problem as JSON, instead of the sizes below; `-` for standard input. With `given`, a `.csv` file is a schedule of
    /// PyTorch.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["devices", "virtual_stages", "slices", "microbatches", "costs"])]
    pub problem: Option<PathBuf>,
    /// Devices of the pipeline.
    #[arg(long, value_name = "P", default_value_t = 4)]
    pub devices: u32,
    /// Stages of each device, of each copy of the pipeline; with `auto` the most. What a policy is made for without it.
    #[arg(long = "virtual", value_name = "V")]
    pub virtual_stages: Option<u32>,
    /// `spipe`: backward stages of each device; three for every forward stage without it.
    #[arg(long, value_name = "V")]
    pub backward: Option<u32>,
    /// Slices of a sequence; with `auto` the most.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub slices: u32,
    /// Micro-batches of a step.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub microbatches: u32,
    /// Times of the passes of a unit, such as `F=1,B=1,W=1,comm=0.1`.
    #[arg(long, value_name = "COSTS", value_delimiter = ',')]
    pub costs: Vec<String>,
    /// The most memory of a device, in activations of one micro-batch over the whole model.
    #[arg(long, value_name = "A")]
    pub memory: Option<f64>,
    /// `svpp`: the most units alive on a device.
    #[arg(long, value_name = "UNITS")]
    pub in_flight: Option<u32>,
    /// `svpp`: forward passes of the warm-up per hop, 1 to 2.
    #[arg(long, value_name = "BIAS", default_value_t = 1.0)]
    pub bias: f64,
    /// `svpp`: how weight gradients are computed.
    #[arg(long, value_enum, default_value_t = WeightGradsChoice::Fused)]
    pub weight_grads: WeightGradsChoice,
    /// `interleaved` and `svpp`: micro-batches of a round.
    #[arg(long, value_name = "N")]
    pub group: Option<u32>,
    /// `auto`: how long to search, 0 to 3.
    #[arg(long, value_name = "LEVEL", default_value_t = 1)]
    pub effort: u8,
    /// Write the schedule as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the schedule as PyTorch's CSV.
    #[arg(long, value_enum, value_name = "DIALECT", conflicts_with = "json")]
    pub csv: Option<CsvDialect>,
    /// Write a CSV file that leaves out what it has no words for.
    #[arg(long, requires = "csv")]
    pub lossy: bool,
    /// Draw idle time over memory, with a point for every policy and the line of `auto`, as SVG; `-` for standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv", "problem"])]
    pub plot: Option<PathBuf>,
}

/// The dialects of PyTorch's CSV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CsvDialect {
    /// Passes, which torch adds messages to.
    ComputeOnly,
    /// Messages, waits and reductions too, for torch 2.15.
    ComputeComms,
}

/// How weight gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum WeightGradsChoice {
    /// With the input gradients, in one pass.
    Fused,
    /// In a pass of their own.
    Split,
    /// GEMM by GEMM.
    PerGemm,
}

/// `pipec explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// A code such as `E0204`; without one, the list of all codes.
    pub code: Option<String>,
}
