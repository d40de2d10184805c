//! `lab up` as its user meets it.
