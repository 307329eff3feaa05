//! `pipec explain`: the section of `docs/errors.md` on an error code.

use super::Failure;
use crate::arguments::ExplainArguments;
use crate::report::Reporter;
use pipe_grammar::diagnostic::{Code, suggest};

const ERRORS: &str = include_str!("../../../../docs/errors.md");

pub(super) fn execute(arguments: &ExplainArguments, reporter: Reporter) -> Result<(), Failure> {
    let Some(asked) = &arguments.code else {
        for code in Code::ALL {
            println!("{code}  {}", code.title());
        }
        return Ok(());
    };
    let code = asked.parse::<Code>().map_err(|unknown| {
        let nearest = suggest(&asked.to_uppercase(), Code::ALL.iter().map(|code| code.as_str()));
        let hint = nearest
            .map_or("`pipec explain` lists all codes".to_owned(), |code| format!("did you mean `{code}`?"));
        Failure::usage(reporter, format!("{unknown}; {hint}"))
    })?;
    let section = section(ERRORS, code.as_str())
        .ok_or_else(|| Failure::internal(reporter, format!("docs/errors.md has no section on {code}")))?;
    println!("{section}");
    Ok(())
}

/// The section whose heading starts with a code, up to the next heading of the same level.
fn section<'a>(document: &'a str, code: &str) -> Option<&'a str> {
    let heading = format!("\n## {code}");
    let start = document.find(&heading)? + 1;
    let rest = &document[start..];
    let end = rest.find("\n## ").unwrap_or(rest.len());
    Some(rest[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_section() {
        for code in Code::ALL {
            assert!(section(ERRORS, code.as_str()).is_some(), "{code}");
        }
    }
}
