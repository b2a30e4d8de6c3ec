//! Who is at the other end of a connection of the loopback device: the kernel tells whose each socket is.

use std::net::{IpAddr, SocketAddr, TcpStream};

/// Whether it is this user or root.
pub(super) fn is_allowed(stream: &TcpStream) -> bool {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let table = match peer.ip() {
        IpAddr::V4(_) => "/proc/self/net/tcp",
        IpAddr::V6(_) => "/proc/self/net/tcp6",
    };
    let user = std::fs::read_to_string(table).ok().and_then(|table| user_of(&table, peer, own));
    user.is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

/// Whose the socket is that is at `local` and is connected to `remote`.
fn user_of(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (written(local), written(remote));
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        if (words.next()?, words.next()?) != (&local, &remote) {
            return None;
        }
        // State, queues, timer, retransmissions; behind the user a count, and the inode.
        let user = words.nth(4)?.parse().ok()?;
        // One that its process has closed is nobody's any more, and its user is written as 0.
        if words.nth(1)? == "0" { None } else { Some(user) }
    })
}

/// An address as these tables have it: words in the machine's order of bytes.
fn written(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let accepted = listener.accept().unwrap().0;
            assert!(is_allowed(&accepted), "{address}");
            drop(client);
            // A child that another test is just making has it until it executes its program.
            let since = Instant::now();
            while is_allowed(&accepted) {
                assert!(since.elapsed() < Duration::from_secs(20), "{address}: nobody's any more");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn the_line_of_the_right_socket_is_taken() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1267 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n\
            1: 0100007F:9C40 0100007F:1267 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1\n\
            2: 0100007F:9C43 0100007F:1267 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(user_of(table, at(0x9c40), at(0x1267)), Some(1000));
        assert_eq!(user_of(table, at(0x9c41), at(0x1267)), None);
        assert_eq!(user_of(table, at(0x1267), at(0x9c40)), Some(0));
        assert_eq!(user_of(table, at(0x9c43), at(0x1267)), None, "closed");
    }
}
