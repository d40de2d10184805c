//! What a drill file becomes against a topology and a policy.

use super::*;
use crate::drill::library::{find, parse};
use crate::lab::topology::{DependencyAt, EntryAt, ProviderAt, TicketsAt};

fn topology() -> Topology {
    let url = |n: u16| format!("http://127.0.0.1:{n}");
    let mut t = Topology {
        format: 1,
        dir: "/tmp/x".into(),
        policy: "/tmp/x/lab.yaml".into(),
        toxiproxy: url(1),
        embedded: true,
        regions: vec!["region-1".into(), "region-2".into()],
        providers: vec![],
        dependencies: vec![],
        tickets: TicketsAt { url: url(2) },
        entries: vec![],
    };
    for (region, name) in [("region-1", "local-a"), ("region-2", "local-b")] {
        let proxy = |what: &str| format!("{region}.{what}");
        t.providers.push(ProviderAt {
            name: name.into(),
            region: region.into(),
            proxy: proxy(name),
            proxied_url: url(3),
            direct_url: url(4),
        });
        for role in ["policy_store", "secrets_store", "history_store", "telemetry"] {
            t.dependencies.push(DependencyAt {
                role: role.into(),
                region: region.into(),
                proxy: proxy(role),
                proxied_url: url(5),
                direct_url: url(6),
            });
        }
        t.entries.push(EntryAt {
            name: region.into(),
            region: region.into(),
            proxy: format!("entry.{region}"),
            url: url(7),
            listen: "127.0.0.1:8".into(),
            admin: "127.0.0.1:9".into(),
        });
    }
    t
}

fn policy() -> Policy {
    crate::policy::load("lab.yaml", crate::assets::LAB_POLICY.as_bytes()).0.unwrap()
}

fn drill(name: &str) -> DrillFile {
    parse(&find(name).unwrap()).unwrap()
}

#[test]
fn region_outage_breaks_all_of_region_1_but_its_entry() {
    let plan = compile(&drill("region-outage"), &topology(), &policy(), None).unwrap();
    let broken: Vec<&str> = plan.rounds[0].faults.iter().map(|f| f.path.proxy.as_str()).collect();
    assert_eq!(
        broken,
        [
            "region-1.local-a",
            "region-1.policy_store",
            "region-1.secrets_store",
            "region-1.history_store",
            "region-1.telemetry"
        ]
    );
    assert_eq!(plan.rounds[0].faults[0].words(), "connect_timeout, open connections silent");
    assert_eq!(
        (plan.broken.as_slice(), plan.stand_ins.as_slice()),
        (&["local-a".to_string()][..], &["local-b".to_string()][..])
    );
    // From policies/lab.yaml.
    let d = &plan.declared;
    assert_eq!((d.deadline_ms, d.connect_limit_ms, d.first_token_limit_ms), (5000.0, 200.0, 600.0));
    assert_eq!((d.recovery_ms, d.queue_max, d.max_attempts, d.breaker_failures), (Some(5000.0), Some(16), 3, 3));
    assert_eq!(d.key_arguments, ["operation_id"]);
    assert!(d.scaling[0].contains("first cooldown: 500 ms here, 5 s by default (10 times shorter)"), "{:?}", d.scaling);
    let variant = compile(&drill("region-outage-gateway"), &topology(), &policy(), None).unwrap();
    assert_eq!(variant.rounds[0].faults[0].path.proxy, "entry.region-1");
}

#[test]
fn see_overrides_what_is_seen_of_providers_alone() {
    let plan = compile(&drill("region-outage"), &topology(), &policy(), Some(See::Refused)).unwrap();
    let seen: Vec<See> = plan.rounds[0].faults.iter().map(|f| f.see).collect();
    assert_eq!(seen[0], See::Refused);
    assert_eq!(plan.rounds[0].faults[0].existing, Existing::Closed);
    assert_eq!(seen[1], See::ConnectTimeout);
}

#[test]
fn names_that_are_not_there_are_found_before_anything_is_broken() {
    let mut d = drill("region-outage");
    d.rounds[0].faults[0].select.region = "region-9".into();
    let e = compile(&d, &topology(), &policy(), None).unwrap_err();
    assert_eq!(e.exit.code(), 4);
    let mut d = drill("region-outage");
    d.rounds[0].faults[1].select.roles = vec!["policy_stor".into()];
    assert_eq!(compile(&d, &topology(), &policy(), None).unwrap_err().exit.code(), 4);
    let mut d = drill("region-outage");
    d.route = "support-caht".into();
    assert_eq!(compile(&d, &topology(), &policy(), None).unwrap_err().exit.code(), 4);
    // A drill that asks for less than the route promises, and one that leaves nobody to stand in.
    let mut d = drill("region-outage");
    d.declare.recovery_ms = Some(crate::spec::numbers::Ms(9000));
    assert_eq!(compile(&d, &topology(), &policy(), None).unwrap_err().exit.code(), 2);
    let mut d = drill("region-outage");
    let mut second = d.rounds[0].faults[0].clone();
    second.select.region = "region-2".into();
    d.rounds[0].faults.push(second);
    let e = compile(&d, &topology(), &policy(), None).unwrap_err();
    assert!(
        e.what.contains("nobody can stand in") && e.hint.ends_with("leave one of them out: local-a, local-b"),
        "{e}"
    );
    // One that breaks no provider is told which there are.
    let mut d = drill("region-outage");
    d.rounds[0].faults.remove(0);
    let e = compile(&d, &topology(), &policy(), None).unwrap_err();
    assert!(e.what.contains("no provider is broken"), "{e}");
    assert!(e.hint.ends_with("providers of the lab: local-a of region-1, local-b of region-2"), "{e}");
}
