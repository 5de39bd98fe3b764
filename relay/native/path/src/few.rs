//! At most a handful of something, without memory of its own.

/// At most `N` items in order.
#[derive(Clone, Copy, Debug)]
pub struct Few<T, const N: usize> {
    items: [T; N],
    count: usize,
}

impl<T: Copy + Default + PartialEq, const N: usize> Few<T, N> {
    /// What there is.
    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.count]
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether nothing more has room.
    pub fn is_full(&self) -> bool {
        self.count == N
    }

    /// Adds an item; false when there is no room.
    pub fn push(&mut self, item: T) -> bool {
        let Some(place) = self.items.get_mut(self.count) else { return false };
        *place = item;
        self.count += 1;
        true
    }

    /// Adds an item that is not there yet; false when it is, or when there is no room.
    pub fn add(&mut self, item: T) -> bool {
        !self.as_slice().contains(&item) && self.push(item)
    }
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { items: [T::default(); N], count: 0 }
    }
}

impl<T: Copy + Default + PartialEq, const N: usize> FromIterator<T> for Few<T, N> {
    /// Takes the first `N`, each once.
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut few = Self::default();
        for item in items {
            few.add(item);
        }
        few
    }
}
