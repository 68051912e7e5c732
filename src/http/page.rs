//! The page: one file, embedded, that reads `/api`.

use std::sync::LazyLock;

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};

use crate::net::http::response::Response;

const PAGE: &str = include_str!("page.html");

/// Only the page's own script and style run, requests go to this server alone, and no page may
/// frame it.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(between("<script>", "</script>")),
        hash(between("<style>", "</style>")),
    )
});

fn between(begin: &str, end: &str) -> &'static str {
    let rest = PAGE.split_once(begin).map_or("", |(_, rest)| rest);
    rest.split_once(end).map_or("", |(inner, _)| inner)
}

fn hash(text: &str) -> String {
    Base64::encode_string(&Sha256::digest(text))
}

/// `/`.
pub fn page() -> Response {
    Response::new(200, "text/html; charset=utf-8", PAGE)
        .with("Content-Security-Policy", POLICY.clone())
        .with("Referrer-Policy", "no-referrer".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        assert!(between("<script>", "</script>").len() > 1000);
        assert!(between("<style>", "</style>").len() > 100);
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches("<style").count(), 1);
        for foreign in ["http://", "https://", "src=", "@import", " style=", " onclick="] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
    }
}
