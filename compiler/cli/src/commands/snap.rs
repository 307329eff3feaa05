//! `pipec snap`: keeps what files compile to in goldens beside them, and tells what has changed.

use super::load::{self, Declared};
use super::{Exit, Failure};
use crate::arguments::{SnapAction, SnapArguments, SnapFiles, SnapTarget};
use crate::report::Reporter;
use crate::snapshot::{Golden, Part, Snapshot, differences};
use std::io;
use std::path::Path;

/// What is done with each golden.
#[derive(Clone, Copy, Debug)]
enum Action<'a> {
    /// With the parts that are asked for.
    Keep(&'a [Part]),
    /// With the parts that are asked for.
    Check(&'a [Part]),
    Accept,
}

pub(super) fn execute(arguments: &SnapArguments, reporter: Reporter) -> Result<(), Failure> {
    let (action, files, filter) = match (&arguments.action, &arguments.target) {
        (Some(SnapAction::Check(SnapTarget { files, filter, what })), _) => {
            (Action::Check(what), files, filter)
        }
        (Some(SnapAction::Accept(SnapFiles { files, filter })), _) => (Action::Accept, files, filter),
        (None, Some(SnapTarget { files, filter, what })) => (Action::Keep(what), files, filter),
        (None, None) => return Err(Failure::usage(reporter, "which files?")),
    };
    // Every file is looked at, whatever becomes of the ones before; the worst failure is the exit code.
    let mut text = String::new();
    let mut exit = Exit::Diagnostics;
    for file in files {
        for failure in each(action, file, filter.as_deref(), reporter) {
            text += &failure.text;
            if failure.exit.code() > exit.code() {
                exit = failure.exit;
            }
        }
    }
    if text.is_empty() { Ok(()) } else { Err(Failure { exit, text }) }
}

/// Does it for the pipelines of a file, and returns what failed.
fn each(action: Action<'_>, file: &Path, filter: Option<&str>, reporter: Reporter) -> Vec<Failure> {
    let pipelines = match load::pipelines(file, reporter) {
        Ok(pipelines) => pipelines,
        Err(failure) => return vec![failure],
    };
    let wanted =
        |golden: &Golden| filter.is_none_or(|filter| golden.path().to_string_lossy().contains(filter));
    pipelines
        .iter()
        .map(|pipeline| (pipeline, Golden::new(file, pipeline.suffix())))
        .filter(|(_, golden)| wanted(golden))
        .filter_map(|(pipeline, golden)| {
            let one = One { file, pipeline, golden, reporter };
            match action {
                Action::Keep(what) => one.keep(what),
                Action::Check(what) => one.check(what),
                Action::Accept => one.accept(),
            }
            .err()
        })
        .collect()
}

/// A pipeline and its golden.
struct One<'a> {
    file: &'a Path,
    pipeline: &'a Declared,
    golden: Golden,
    reporter: Reporter,
}

impl One<'_> {
    fn keep(&self, what: &[Part]) -> Result<(), Failure> {
        let path = self.golden.path();
        let (kept, now) = self.compare(what)?;
        match kept {
            Some(kept) if kept == now => {
                self.io(self.golden.reject())?;
                println!("{}: unchanged", path.display());
                Ok(())
            }
            Some(kept) => {
                self.io(self.golden.propose(&now))?;
                Err(self.failure(&format!(
                    "not what {} says; `pipec snap accept {}` keeps what is pending\n{}",
                    path.display(),
                    self.file.display(),
                    told(&kept, &now)
                )))
            }
            None => {
                self.io(self.golden.write(&now))?;
                println!("{}: written", path.display());
                Ok(())
            }
        }
    }

    fn check(&self, what: &[Part]) -> Result<(), Failure> {
        let path = self.golden.path();
        let (kept, now) = self.compare(what)?;
        match kept {
            Some(kept) if kept == now => {
                println!("{}: unchanged", path.display());
                Ok(())
            }
            Some(kept) => {
                Err(self.failure(&format!("not what {} says\n{}", path.display(), told(&kept, &now))))
            }
            None => Err(self.failure(&format!(
                "there is no {}; `pipec snap {}` writes it",
                path.display(),
                self.file.display()
            ))),
        }
    }

    fn accept(&self) -> Result<(), Failure> {
        let accepted = self.io(self.golden.accept())?;
        let what = if accepted { "accepted" } else { "nothing is pending" };
        println!("{}: {what}", self.golden.path().display());
        Ok(())
    }

    /// The golden, if there is one, and what the pipeline compiles to, both with the parts that are asked for.
    fn compare(&self, what: &[Part]) -> Result<(Option<Snapshot>, Snapshot), Failure> {
        let kept = self.golden.read().map_err(|error| {
            Failure::diagnostics(
                self.reporter.plain(None, &format!("{}: {error}", self.golden.path().display())),
            )
        })?;
        let parts = match &kept {
            _ if !what.is_empty() => what.to_vec(),
            Some(kept) => kept.parts(),
            None => Part::DEFAULT.to_vec(),
        };
        let program = load::pipeline(self.file, self.pipeline, self.reporter)?;
        Ok((kept, Snapshot::of(&program, &parts)))
    }

    fn failure(&self, message: &str) -> Failure {
        let file = self.file.display().to_string();
        Failure::diagnostics(self.reporter.at_line(&file, self.pipeline.line, message))
    }

    fn io<T>(&self, result: io::Result<T>) -> Result<T, Failure> {
        result.map_err(|error| Failure::file(self.reporter, self.golden.path(), &error))
    }
}

/// The differences; a golden that has other parts than are asked for says so.
fn told(kept: &Snapshot, now: &Snapshot) -> String {
    let text = differences(kept, now);
    let names =
        |snapshot: &Snapshot| snapshot.parts().into_iter().map(Part::name).collect::<Vec<_>>().join(", ");
    if kept.parts() == now.parts() {
        text
    } else {
        format!("it has {}, and {} is asked for\n{text}", names(kept), names(now))
    }
}
