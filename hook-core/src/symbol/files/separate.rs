//! Where distributions keep separate debug files.

use alloc::{format, vec::Vec};

use crate::module::BuildId;

/// `DIR/.build-id/ab/cdef.debug`.
pub(super) fn by_build_id(root: &[u8], id: &BuildId) -> Option<Vec<u8>> {
    let hex = format!("{id}");
    let (first, rest) = hex.split_at_checked(2)?;
    Some([root, b"/.build-id/", first.as_bytes(), b"/", rest.as_bytes(), b".debug"].concat())
}

/// Where the file of a debug link may be, for an object at `path`: beside it, in `.debug` there, and in the same folder
/// below each root. The link's own folders, should it have any, don't count.
pub(super) fn by_link(roots: &[&[u8]], path: &[u8], link: &[u8]) -> Vec<Vec<u8>> {
    let link = link.rsplit(|&byte| byte == b'/').next().unwrap_or(&[]);
    if link.is_empty() {
        return Vec::new();
    }
    let folder = path.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |at| &path[..=at]);
    let mut paths = Vec::from([[folder, link].concat(), [folder, b".debug/", link].concat()]);
    if folder.starts_with(b"/") {
        paths.extend(roots.iter().map(|root| [root, folder, link].concat()));
    }
    paths.retain(|candidate| candidate != path);
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_places() {
        let text = |paths: Vec<Vec<u8>>| paths.into_iter().map(|p| String::from_utf8(p).unwrap());
        let found: Vec<_> = text(by_link(&[b"/usr/lib/debug"], b"/lib/libx.so", b"ab.debug")).collect();
        assert_eq!(found, ["/lib/ab.debug", "/lib/.debug/ab.debug", "/usr/lib/debug/lib/ab.debug"]);
        let found: Vec<_> = text(by_link(&[b"/usr/lib/debug"], b"libx.so", b"../../etc/libx.so")).collect();
        assert_eq!(found, [".debug/libx.so"]);
        assert!(
            by_link(&[b"/r"], b"/lib/x", b"").is_empty() && by_link(&[b"/r"], b"/lib/x", b"a/").is_empty()
        );
    }
}
