//! Family 4: a pool that is ordered by cost, with targets whose cost nobody has said.

use crate::diag::{Diagnostic, Example, Rule, Severity, list, quoted};
use crate::spec::document::escape;
use crate::spec::policy::Select;

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 1] = [&NO_PRICE];

/// Cost without a price.
pub static NO_PRICE: Rule = Rule {
    code: "LF402",
    name: "cost-without-price",
    severity: Severity::Warning,
    what: "A pool says `select: cost`, and a target of it has no `price`.",
    why: "A target without a price comes after all that have one, however cheap it is; where no target has one, the order is the one written.",
    fix: "Write `price` on every target of the pool, or another `select`.",
    example: Example::Policy { good: "select: priority", bad: "select: cost" },
};

/// Findings about every pool.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (name, pool) in view.raw.pools.iter().flat_map(|p| p.iter()) {
        if pool.select != Some(Select::Cost) {
            continue;
        }
        let targets = || pool.targets.iter().flat_map(|t| t.0.iter());
        // A price that stands there and cannot be read has its finding.
        let unpriced = |target: &str| {
            let declared = view.raw.targets.as_ref().and_then(|all| all.get(target));
            declared.is_some_and(|t| t.price.is_none()) && view.doc.get(&View::target_at(target, "price")).is_none()
        };
        let without: Vec<&str> = targets().map(|t| t.as_str()).filter(|t| unpriced(t)).collect();
        // One target has nobody to be cheaper than.
        if without.is_empty() || targets().count() < 2 {
            continue;
        }
        let (have, they) = if without.len() == 1 { ("has", "it comes") } else { ("have", "they come") };
        let priced = targets().count() > without.len();
        let so = if priced { format!("{they} last") } else { "the order is the one written".to_owned() };
        let message =
            format!("the pool {} goes by cost, and {} {have} no price", quoted(name), list(without.iter().copied(), 6));
        found.push(
            view.doc
                .at(&NO_PRICE, &format!("/pools/{}/select", escape(name)), message)
                .label(so)
                .expected("a price on every target of it")
                .help("write `price: { input_per_mtok_usd: 0.05, output_per_mtok_usd: 0.15 }` with its own figures on each, or another `select`"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{World, check};
    use super::*;
    use crate::policy::load_with_places;
    use crate::spec::examples::POLICY;

    #[test]
    fn a_target_without_a_price_in_a_pool_by_cost_is_named_with_its_place() {
        let by_cost = POLICY.replacen("select: priority", "select: cost", 1);
        let price = "    price: { input_per_mtok_usd: 1.0, output_per_mtok_usd: 2.0 }\n";
        let priced = |name: &str, text: &str| text.replacen(&format!("  {name}:\n"), &format!("  {name}:\n{price}"), 1);
        let found = |text: &str| {
            let loaded = load_with_places("example", text.as_bytes());
            assert!(loaded.diagnostics.is_empty(), "{:#?}", loaded.diagnostics);
            check(&loaded, &World::default()).into_iter().filter(|d| d.rule == &NO_PRICE).collect::<Vec<_>>()
        };
        let none = found(&by_cost);
        assert_eq!((none.len(), none[0].label.as_str()), (1, "the order is the one written"));
        assert!(none[0].message.contains("`local-a`") && none[0].message.contains("`local-b`"), "{none:#?}");
        let one = found(&priced("local-a", &by_cost));
        assert_eq!(one[0].label, "it comes last");
        assert!(one[0].message.ends_with("`local-b` has no price"), "{one:#?}");
        assert!(found(&priced("local-b", &priced("local-a", &by_cost))).is_empty());
        assert!(found(POLICY).is_empty());
    }
}
