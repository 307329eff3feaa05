//! Reading blocks of settings and specialising declarations that have parameters.

use super::Origin;
use super::constant::{Constant, Environment, Settings, evaluate, settings};
use super::report::Report;
use super::sources::{Named, Sources};
use pipe_grammar::ast::{Cluster, ClusterItem, Definition, Model, Parameter, Record, Statement};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};

/// The most declarations that may be made one from the other.
const MAX_CHAIN: usize = 32;

/// A block whose keys have been checked.
pub(super) struct Block<'a> {
    what: &'static str,
    settings: &'a Settings,
}

impl<'a> Block<'a> {
    /// Checks that every key is known. Keys that the language knows but pipec does not have yet are refused as such.
    pub(super) fn new(
        what: &'static str,
        settings: &'a Settings,
        known: &[&str],
        unavailable: &[&str],
        report: &mut Report,
    ) -> Self {
        for (key, origin, _) in &settings.entries {
            if known.contains(&key.as_str()) {
                continue;
            }
            report.push(if unavailable.contains(&key.as_str()) {
                Diagnostic::error(origin.source, Code::Unsupported, format!("`{key}` is not available"))
                    .at(origin.span, "pipec does not have this")
                    .help("leave it out")
            } else {
                let error =
                    Diagnostic::error(origin.source, Code::UnknownKey, format!("{what} has no key `{key}`"))
                        .at(origin.span, "");
                match suggest(key, known.iter().copied()) {
                    Some(near) => error.help(format!("did you mean `{near}`?")),
                    None if known.is_empty() => error.help("it has no keys"),
                    None => error.help(format!("its keys are {}", known.join(", "))),
                }
            });
        }
        Block { what, settings }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&'a Constant> {
        self.settings.entries.iter().find(|(name, _, _)| name == key).map(|(_, _, value)| value)
    }

    /// Where a key stands with its value, or the block if it does not.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.get(key).map_or(self.settings.origin, |value| value.origin)
    }

    /// The value of a key that must be there; `example` shows how it is written.
    pub(super) fn require(&self, key: &str, example: &str, report: &mut Report) -> Option<&'a Constant> {
        let found = self.get(key);
        if found.is_none() {
            let origin = self.settings.origin;
            report.push(
                Diagnostic::error(origin.source, Code::MissingKey, format!("{} needs `{key}`", self.what))
                    .at(origin.span, "")
                    .help(format!("add `{key}: {example}`")),
            );
        }
        found
    }
}

/// Declarations with parameters.
pub(super) trait Declared: Named {
    /// What its block holds.
    type Item;
    fn parameters(&self) -> &[Parameter];
    fn body(&self) -> &Definition<Self::Item>;
}

impl Declared for Model {
    type Item = Statement;
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
    fn body(&self) -> &Definition<Statement> {
        &self.body
    }
}

impl Declared for Cluster {
    type Item = ClusterItem;
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
    fn body(&self) -> &Definition<ClusterItem> {
        &self.body
    }
}

/// A declaration that is written out, with a value for every parameter.
pub(super) struct Specialised<'a, Item> {
    /// The text it stands in.
    pub(super) source: SourceId,
    /// What its block holds.
    pub(super) items: &'a [Item],
    /// What it can be given.
    pub(super) parameters: &'a [Parameter],
    /// A value for each of them.
    pub(super) environment: Environment,
}

/// Follows `= other { ... }` to the declaration that is written out, and binds its parameters.
///
/// `site` is what asks for it; `base` holds the names that every declaration of the kind knows.
pub(super) fn specialise<'a, D: Declared>(
    sources: &'a Sources,
    (mut source, mut declaration): (SourceId, &'a D),
    site: Origin,
    mut given: Settings,
    base: &Environment,
    report: &mut Report,
) -> Option<Specialised<'a, D::Item>> {
    let mut seen = Vec::new();
    let mut site = site;
    loop {
        let this = (source, declaration.name());
        if seen.contains(&this) {
            report.push(
                Diagnostic::error(
                    site.source,
                    Code::CyclicUse,
                    format!("{} `{}` is made from itself", D::KIND, declaration.name()),
                )
                .at(site.span, "leads back here"),
            );
            return None;
        }
        seen.push(this);
        if seen.len() > MAX_CHAIN {
            report.push(
                Diagnostic::error(
                    site.source,
                    Code::TooDeep,
                    format!("more than {MAX_CHAIN} declarations deep"),
                )
                .at(site.span, "each is made from the next")
                .help(format!("make it from the {} that is written out", D::KIND)),
            );
            return None;
        }
        let environment = bind(declaration, source, site, &given, base, report);
        let record: &Record = match declaration.body() {
            Definition::Block(items) => {
                let parameters = declaration.parameters();
                return Some(Specialised { source, items, parameters, environment });
            }
            Definition::Specialised(record) => record,
        };
        given = settings(&record.settings, source, &environment, report);
        site = Origin { source, span: record.path.span };
        (source, declaration) = sources.look_up::<D>(&record.path.to_string(), site, report)?;
    }
}

/// The parameters of a declaration, from what is given and from defaults.
fn bind<D: Declared>(
    declaration: &D,
    source: SourceId,
    site: Origin,
    given: &Settings,
    base: &Environment,
    report: &mut Report,
) -> Environment {
    let mut environment = base.clone();
    let parameters = declaration.parameters();
    for (key, origin, _) in &given.entries {
        if parameters.iter().any(|parameter| parameter.name.text == *key) {
            continue;
        }
        let names = || parameters.iter().map(|parameter| parameter.name.text.as_str());
        let error = Diagnostic::error(
            origin.source,
            Code::UnknownKey,
            format!("{} `{}` has no parameter `{key}`", D::KIND, declaration.name()),
        )
        .at(origin.span, "");
        report.push(match suggest(key, names()) {
            Some(near) => error.help(format!("did you mean `{near}`?")),
            None if parameters.is_empty() => error.help("it has no parameters"),
            None => error.help(format!("its parameters are {}", names().collect::<Vec<_>>().join(", "))),
        });
    }
    for parameter in parameters {
        let name = &parameter.name.text;
        let found = given.entries.iter().find(|(key, _, _)| key == name).map(|(_, _, value)| value.clone());
        let value = match (found, &parameter.default) {
            (Some(value), _) => value,
            (None, Some(default)) => evaluate(default, source, &environment, report),
            (None, None) => {
                report.push(
                    Diagnostic::error(
                        site.source,
                        Code::MissingKey,
                        format!("{} `{}` needs `{name}`", D::KIND, declaration.name()),
                    )
                    .at(site.span, "")
                    .help(format!("write `{} {{ {name}: .. }}`", declaration.name())),
                );
                Constant::poison(site)
            }
        };
        environment.insert(name.clone(), value);
    }
    environment
}
