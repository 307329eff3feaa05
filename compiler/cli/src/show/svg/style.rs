//! Colours and fonts of the SVG.

use super::super::scene::{Kind, Mark};
use super::number;
use pipec_program::{Category, Event, Nanos, Pass, QueueId};

/// Shades per pass; chunks beyond the last take the last.
pub(super) const SHADES: usize = 4;
pub(super) const IDLE: &str = "#f0f2f5";

const FORWARD: [&str; SHADES] = ["#a9d0f5", "#5fa5e3", "#2f79c4", "#1b5390"];
const BACKWARD: [&str; SHADES] = ["#a8dcae", "#62bd72", "#339250", "#1d6a37"];
const WEIGHT: [&str; SHADES] = ["#ffd499", "#fbab48", "#e5821a", "#b4600a"];
const RECOMPUTE: [&str; SHADES] = ["url(#again0)", "url(#again1)", "url(#again2)", "url(#again3)"];
const PAIR: [&str; SHADES] = ["#a3dbd8", "#57b9b4", "#2a8f8a", "#186560"];
const AGAIN: [(&str, &str); SHADES] =
    [("#e4d5f5", "#a583d1"), ("#cdb3ec", "#8a5fc2"), ("#a583d1", "#6b3fa8"), ("#8a5fc2", "#4f2885")];

/// An event for marks that only stand for their kind.
pub(super) const NOWHERE: Event =
    Event { queue: QueueId(0), position: 0, start: Nanos::ZERO, end: Nanos::ZERO };

/// The colour of a box.
pub(super) fn fill(mark: &Mark<'_>, chunk: usize) -> String {
    let shade = chunk.min(SHADES - 1);
    let colour = match mark.kind {
        Kind::Pass(Pass::F) => FORWARD[shade],
        Kind::Pass(Pass::B | Pass::BW) => BACKWARD[shade],
        Kind::Pass(Pass::W) => WEIGHT[shade],
        Kind::Pass(Pass::R) => RECOMPUTE[shade],
        Kind::Pair(_) => PAIR[shade],
        Kind::Step(_) => "#b4bac4",
        Kind::Fill => "#d5d9df",
        Kind::Copy => "#d9739f",
        Kind::Send | Kind::Recv if mark.is_backward() => "#49a35d",
        Kind::Send | Kind::Recv => "#4f93d2",
        Kind::Reduce => "#9a7b6f",
    };
    colour.to_owned()
}

/// The class of the number in a box: light on dark colours.
pub(super) fn ink(mark: &Mark<'_>, chunk: usize) -> &'static str {
    match mark.kind {
        Kind::Pass(_) | Kind::Pair(_) if chunk >= 2 => "box light",
        Kind::Pass(_) | Kind::Pair(_) | Kind::Step(_) | Kind::Fill | Kind::Send | Kind::Recv => "box",
        Kind::Copy | Kind::Reduce => "box light",
    }
}

/// The colour of live bytes.
pub(super) fn category(category: Category) -> &'static str {
    match category {
        Category::Weights => "#aab4c2",
        Category::Loaded => "#bfc6a3",
        Category::Gradients => "#9fcfa8",
        Category::Optimizer => "#cdd4dd",
        Category::Activations => "#8dbfec",
        Category::Communication => "#f3c778",
        Category::Workspace => "#cdb3ec",
        Category::Data => "#e6b8c6",
    }
}

/// Background, text styles and the hatching of recomputation.
pub(super) fn sheet(width: f64, height: f64) -> String {
    let mut patterns = String::new();
    for (shade, (light, dark)) in AGAIN.iter().enumerate() {
        patterns += &format!(
            "<pattern id=\"again{shade}\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"{light}\"/>\
             <rect width=\"1.6\" height=\"5\" fill=\"{dark}\"/></pattern>\n"
        );
    }
    format!(
        "<style>\n\
         text {{ font-size: 11px; fill: #52606d }}\n\
         .title {{ font-size: 16px; font-weight: 600; fill: #1f2933 }}\n\
         .caption {{ font-size: 12px }}\n\
         .device {{ font-size: 12px; font-weight: 600; fill: #1f2933 }}\n\
         .stages {{ font-weight: 400; fill: #7b8794 }}\n\
         .time {{ font-size: 10px; text-anchor: middle }}\n\
         .lane {{ font-size: 8px; text-anchor: end; fill: #7b8794 }}\n\
         .share {{ font-size: 10px }}\n\
         .box {{ font-size: 10px; text-anchor: middle; pointer-events: none; fill: #1f2933 }}\n\
         .light {{ fill: #ffffff }}\n\
         .idle {{ fill: {IDLE} }}\n\
         .tick {{ stroke: #d3d9e0; stroke-width: 1; fill: none }}\n\
         .arena {{ stroke: #7b8794; stroke-width: 0.8; stroke-dasharray: 3 3; fill: none }}\n\
         </style>\n<defs>\n{patterns}</defs>\n\
         <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n",
        number(width),
        number(height)
    )
}
