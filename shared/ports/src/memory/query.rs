//! Queries, page by page.

use super::table::PartitionItems;
use crate::TableItem;
use std::ops::Bound;

/// A query of one partition key from some place on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    pub pk: String,
    from: Bound<String>,
    to: Bound<String>,
    is_backwards: bool,
    limit: usize,
}

/// A page of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemPage {
    pub items: Vec<(String, TableItem)>,
    /// The query of the next page; none if there is no more.
    pub next: Option<PageQuery>,
}

impl PageQuery {
    /// The items whose sort key lies in `from..=to`, in order.
    pub fn range(pk: &str, from: &str, to: &str) -> Self {
        let (from, to) = (Bound::Included(from.to_owned()), Bound::Included(to.to_owned()));
        Self { pk: pk.to_owned(), from, to, is_backwards: false, limit: usize::MAX }
    }

    /// The `limit` items with the highest sort keys, highest first.
    pub fn last(pk: &str, limit: usize) -> Self {
        let (from, to) = (Bound::Unbounded, Bound::Unbounded);
        Self { pk: pk.to_owned(), from, to, is_backwards: true, limit }
    }

    fn is_empty(&self) -> bool {
        let is_inverted = match (&self.from, &self.to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Excluded(from), Bound::Included(to)) => from >= to,
            _ => false,
        };
        is_inverted || self.limit == 0
    }

    /// A page of at least `page_bytes`, if there are so many, and its bytes.
    pub(super) fn page(&self, items: &PartitionItems, page_bytes: u64) -> (ItemPage, u64) {
        let mut found = ItemPage { items: Vec::new(), next: None };
        let mut bytes = 0;
        if self.is_empty() {
            return (found, bytes);
        }
        let mut items = items.range((self.from.clone(), self.to.clone()));
        let mut step = || if self.is_backwards { items.next_back() } else { items.next() };
        while let Some((sk, stored)) = step() {
            bytes += stored.bytes(&self.pk, sk);
            found.items.push((sk.clone(), stored.item.clone()));
            if found.items.len() == self.limit {
                break;
            }
            if bytes >= page_bytes {
                found.next = Some(self.after(sk, found.items.len()));
                break;
            }
        }
        (found, bytes)
    }

    /// The query of what follows `count` items, of which `sk` was the last.
    fn after(&self, sk: &str, count: usize) -> Self {
        let sk = Bound::Excluded(sk.to_owned());
        let next = Self { limit: self.limit - count, ..self.clone() };
        if self.is_backwards { Self { to: sk, ..next } } else { Self { from: sk, ..next } }
    }
}
