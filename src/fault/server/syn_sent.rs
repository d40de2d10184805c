//! The sockets of this machine that wait for a connect: asked from the kernel by netlink (`sock_diag(7)`), which takes a few
//! milliseconds however many other sockets there are; where that is not allowed, read from `/proc/net/tcp`, which lists all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A waiting socket: its own address, and whom it waits for.
pub type Pending = (SocketAddr, SocketAddr);

/// More are not looked at.
const LIST_MAX: usize = 65_536;

/// All of them now; nothing on a system that tells neither way.
#[must_use]
pub fn list() -> Vec<Pending> {
    #[cfg(target_os = "linux")]
    if let Some(found) = netlink::list() {
        return found;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|t| std::fs::read_to_string(t).ok());
    tables.flat_map(|text| from_table(&text)).take(LIST_MAX).collect()
}

/// Lines of `/proc/net/tcp` in the state `SYN_SENT`.
fn from_table(text: &str) -> Vec<Pending> {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, peer, state) = (fields.next()?, fields.next()?, fields.next()?);
        (state == "02").then(|| Some((address(local)?, address(peer)?)))?
    };
    text.lines().filter_map(line).collect()
}

/// An address as `/proc/net/tcp` writes it: words in the machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut octets = Vec::new();
    for word in ip.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        octets.extend(word.to_ne_bytes());
    }
    Some(SocketAddr::new(ip_of(&octets)?, u16::from_str_radix(port, 16).ok()?))
}

/// Four or sixteen octets. An IPv4 address in IPv6 clothes is the IPv4 address.
fn ip_of(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?);
    Some(IpAddr::V6(v6).to_canonical())
}

#[cfg(target_os = "linux")]
mod netlink {
    use std::time::Duration;

    use rustix::fd::OwnedFd;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};

    use super::{LIST_MAX, Pending, SocketAddr, ip_of};

    // From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
    const HEADER_BYTES: usize = 16;
    const REQUEST_BYTES: usize = 56;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x1 | 0x300;
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    const TCP: u8 = 6;
    /// Bit of `TCP_SYN_SENT` (2) in the mask of states.
    const SYN_SENT: u32 = 1 << 2;
    const ANSWER_MAX: Duration = Duration::from_secs(1);

    /// Nothing where the kernel does not answer.
    pub fn list() -> Option<Vec<Pending>> {
        let socket = socket(AddressFamily::NETLINK, SocketType::DGRAM, Some(netlink::SOCK_DIAG)).ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX)).ok()?;
        let mut found = Vec::new();
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            ask(&socket, u8::try_from(family.as_raw()).ok()?, &mut found)?;
        }
        Some(found)
    }

    fn ask(socket: &OwnedFd, family: u8, found: &mut Vec<Pending>) -> Option<()> {
        let mut request = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
        request.extend(u32::try_from(HEADER_BYTES + REQUEST_BYTES).ok()?.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(REQUEST_DUMP.to_ne_bytes());
        request.extend([0; 8]);
        request.extend([family, TCP, 0, 0]);
        request.extend(SYN_SENT.to_ne_bytes());
        request.resize(HEADER_BYTES + REQUEST_BYTES, 0);
        send(socket, &request, SendFlags::empty()).ok()?;
        let mut buf = vec![0; 64 << 10];
        loop {
            let n = recv(socket, &mut buf[..], RecvFlags::empty()).ok()?.0;
            let mut rest = buf.get(..n)?;
            while rest.len() >= HEADER_BYTES {
                let len = usize::try_from(u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
                match u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?) {
                    DONE => return Some(()),
                    ERROR => return None,
                    _ => found.extend(rest.get(HEADER_BYTES..len).and_then(pending)),
                }
                // Messages begin at multiples of four.
                rest = rest.get(len.max(HEADER_BYTES).next_multiple_of(4)..).unwrap_or_default();
            }
            if found.len() > LIST_MAX {
                return Some(());
            }
        }
    }

    /// `struct inet_diag_msg`: family, state, timer, retransmits, then ports and addresses in network order.
    fn pending(message: &[u8]) -> Option<Pending> {
        let v4 = i32::from(*message.first()?) == i32::from(AddressFamily::INET.as_raw());
        let len = if v4 { 4 } else { 16 };
        let port = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
        let at = |ip: usize, of_port: usize| Some(SocketAddr::new(ip_of(message.get(ip..ip + len)?)?, port(of_port)?));
        Some((at(8, 4)?, at(24, 6)?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_as_the_kernel_prints_them() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:A001 0100007F:2329 02 00\n   \
                     1: 0100007F:A002 0100007F:2329 01 00\n";
        let pending = ("127.0.0.1:40961".parse().unwrap(), "127.0.0.1:9001".parse().unwrap());
        assert_eq!(from_table(table), [pending]);
        assert_eq!(address("0000000000000000FFFF00000100007F:2329"), "127.0.0.1:9001".parse().ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_waiting_connect_is_found_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let addr = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                client.set_nonblocking(true).unwrap();
                let _ = client.connect(&addr.into());
                client
            })
            .collect();
        let local = |c: &socket2::Socket| c.local_addr().unwrap().as_socket().unwrap();
        let addrs: Vec<SocketAddr> = clients.iter().map(local).collect();
        let waiting = |list: Vec<Pending>| list.iter().filter(|(l, p)| *p == addr && addrs.contains(l)).count();
        // One fills the queue.
        assert_eq!(waiting(netlink::list().expect("netlink answers here")), 3);
        assert_eq!(waiting(from_table(&std::fs::read_to_string("/proc/net/tcp").unwrap())), 3);
    }
}
