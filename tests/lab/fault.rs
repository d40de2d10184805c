//! The embedded fault server: the suite that it shares with a real one.

#[path = "../suite/toxiproxy/mod.rs"]
pub mod suite;

use std::net::SocketAddr;

use llmfo::fault::server::{Options, start};
use suite::rig::Rig;
use suite::{api, data, ends, safe};

pub fn rig() -> Rig {
    let running = start(SocketAddr::from(([127, 0, 0, 1], 0)), Options { seed: 7, ..Options::default() }).unwrap();
    Rig::new(running.addr, running)
}

macro_rules! strict {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                $module::$name(&rig());
            }
        )+
    };
}

suite::toxiproxy_checks!(strict);
