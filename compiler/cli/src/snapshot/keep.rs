//! Snapshots in tests of other crates, by one macro.

use super::{Golden, Part, Snapshot, differences};
use crate::arguments::{Color, ErrorFormat};
use crate::commands::load;
use crate::report::Reporter;
use std::path::Path;

/// Asserts that every pipeline of a `.pipe` file, or a `.pprog` file, compiles to what the golden beside it says, as
/// `pipec snap` keeps it. The path is relative to the manifest of the crate that is tested.
///
/// A test that fails leaves what it found in a `.snap.new` file, for `pipec snap accept` or `cargo insta review`. As for
/// other snapshots of `insta`, `INSTA_UPDATE=always` accepts it at once, and `INSTA_UPDATE=no` writes nothing.
///
/// ```no_run
/// pipec::assert_snapshot!("plans/large.pipe");
/// ```
#[macro_export]
macro_rules! assert_snapshot {
    ($path:expr $(,)?) => {
        $crate::snapshot::assert_kept(
            ::std::path::Path::new(::std::env!("CARGO_MANIFEST_DIR")).join($path).as_path(),
        )
    };
}

/// What `assert_snapshot!` does.
///
/// # Panics
/// When the file does not compile, or compiles to something else than its goldens say.
#[track_caller]
pub fn assert_kept(file: &Path) {
    let reporter = Reporter::new(ErrorFormat::Human, Color::Never);
    let update = std::env::var("INSTA_UPDATE").unwrap_or_default();
    let pipelines = match load::pipelines(file, reporter) {
        Ok(pipelines) => pipelines,
        Err(failure) => panic!("{}", failure.text),
    };
    let mut told = String::new();
    for pipeline in pipelines {
        let golden = Golden::new(file, pipeline.suffix());
        let kept = match golden.read() {
            Ok(kept) => kept,
            Err(error) => panic!("{}: {error}", golden.path().display()),
        };
        let parts = kept.as_ref().map_or(Part::DEFAULT.to_vec(), Snapshot::parts);
        let now = match load::pipeline(file, &pipeline, reporter) {
            Ok(program) => Snapshot::of(&program, &parts),
            Err(failure) => panic!("{}", failure.text),
        };
        if kept.as_ref() == Some(&now) {
            continue;
        }
        let written = match update.as_str() {
            "always" => golden.write(&now),
            "no" => Ok(()),
            _ => golden.propose(&now),
        };
        if let Err(error) = written {
            panic!("{}: {error}", golden.path().display());
        }
        if update != "always" {
            let what = kept.map_or("there is no golden\n".to_owned(), |kept| differences(&kept, &now));
            told += &format!("{}\n{what}", golden.path().display());
        }
    }
    assert!(
        told.is_empty(),
        "what {} compiles to has changed; `pipec snap accept` keeps it\n{told}",
        file.display()
    );
}
