//! Typed ids and the vectors they index.
//!
//! Every table of a program has an id type of its own, so that a buffer can never be looked up as a channel. The
//! `Display` of an id is its spelling in the textual form. Ids are dense: they are positions in an [`IdVec`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A dense id: a position in the table of its kind.
pub trait Id: Copy + Eq + Ord + fmt::Debug {
    /// The id at a position.
    fn new(index: usize) -> Self;
    /// The position of the id in its table.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Id for $name {
            fn new(index: usize) -> Self {
                // A table of more than 2^32 rows does not fit the memory of any compiler host.
                Self(u32::try_from(index).expect("a table has fewer than 2^32 rows"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

ids! {
    /// A device, `d0`.
    DeviceId = "d";
    /// A function, `f3`.
    FunctionId = "f";
    /// A buffer, `b12`.
    BufferId = "b";
    /// A channel, `c2`.
    ChannelId = "c";
    /// A queue, `q1`. Queues of all devices share one numbering.
    QueueId = "q";
    /// A link, `l4`.
    LinkId = "l";
    /// A group of devices that reduce together, `r0`.
    GroupId = "r";
    /// A parameter of the model, `t7`.
    ParameterId = "t";
    /// A value inside a function, `v5`.
    ValueId = "v";
    /// A region parameter of a function, `p0`.
    ParamId = "p";
    /// A scalar parameter of a function, `s0`.
    ScalarId = "s";
    /// A stage: contiguous layers of one cut, 0 nearest the input, `g2`.
    StageId = "g";
    /// A micro-batch of the step, `m3`.
    MicroBatch = "m";
    /// A slice of the sequence, `i0`.
    Slice = "i";
}

/// A vector indexed by one id type.
#[derive(Clone, PartialEq, Eq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    id: PhantomData<fn(I) -> I>,
}

impl<I: Id, T> IdVec<I, T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::from(Vec::new())
    }

    /// Appends an item and returns its id.
    pub fn push(&mut self, item: T) -> I {
        let id = I::new(self.items.len());
        self.items.push(item);
        id
    }

    /// The item of an id, if the table has it.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the table has no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All ids, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::new)
    }

    /// All items with their ids, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::new(index), item))
    }

    /// All items with their ids, ascending, to change.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (I, &mut T)> + ExactSizeIterator {
        self.items.iter_mut().enumerate().map(|(index, item)| (I::new(index), item))
    }

    /// All items, ascending by id.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// The items in order.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<I: Id, T> Default for IdVec<I, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I, T> From<Vec<T>> for IdVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, id: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(iter: It) -> Self {
        Self::from(iter.into_iter().collect::<Vec<T>>())
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IdVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}
