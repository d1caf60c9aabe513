//! Unimodal regression: least squares of a curve that falls and then rises.

/// Values pooled to one mean.
#[derive(Debug, Clone, Copy)]
struct Pool {
    mean: f64,
    weight: f64,
    members: usize,
}

/// Fits (value, weight) with a curve that does not rise before its minimum and does not fall after it. Chooses the best
/// fit among all positions of the minimum.
pub(crate) fn unimodal(values: &[(f64, f64)]) -> Vec<f64> {
    let falling = |values: &[(f64, f64)]| monotone(values.iter().map(|(v, w)| (-v, *w)));
    let rising = |values: &[(f64, f64)]| monotone(values.iter().copied());
    let mut best: (f64, Vec<f64>) = (f64::INFINITY, Vec::new());
    for lowest in 0..values.len() {
        let (left, right) = values.split_at(lowest + 1);
        let mut curve: Vec<f64> = falling(left).into_iter().map(|value| -value).collect();
        curve.extend(rising(right));
        let error: f64 =
            curve.iter().zip(values).map(|(fit, (value, w))| w * (fit - value).powi(2)).sum();
        // Beyond rounding: of equal fits the first.
        if error < best.0 * (1.0 - 1e-9) {
            best = (error, curve);
        }
    }
    best.1
}

/// Fits an increasing curve: neighbours in the wrong order become their mean.
fn monotone(values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
    let mut pools: Vec<Pool> = Vec::new();
    for (mean, weight) in values {
        let mut pool = Pool { mean, weight, members: 1 };
        while let Some(before) = pools.pop_if(|before| before.mean > pool.mean) {
            let weight = before.weight + pool.weight;
            pool.mean = (before.mean * before.weight + pool.mean * pool.weight) / weight;
            pool.weight = weight;
            pool.members += before.members;
        }
        pools.push(pool);
    }
    pools.iter().flat_map(|pool| std::iter::repeat_n(pool.mean, pool.members)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(values: &[f64]) -> Vec<f64> {
        unimodal(&values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>())
    }

    #[test]
    fn what_falls_and_rises_stays() {
        let values = [5.0, 3.0, 2.0, 2.5, 4.0];
        assert_eq!(fit(&values), values);
        assert_eq!(fit(&[3.0]), [3.0]);
    }

    #[test]
    fn noise_is_averaged_away() {
        let pooled = fit(&[5.0, 3.0, 2.0, 2.2, 2.0, 2.2, 9.0]);
        assert!((pooled[2..5].iter().sum::<f64>() - 6.2).abs() < 1e-9);
        let flat = fit(&[4.0, 1.1, 0.9, 1.1, 0.9]);
        assert!(flat[1..].iter().all(|value| (0.9..=1.1).contains(value)));
    }

    #[test]
    fn weights_count() {
        let curve = unimodal(&[(2.0, 1.0), (1.0, 3.0), (1.4, 1.0), (1.0, 3.0)]);
        assert_eq!(curve[0], 2.0);
        assert!((curve[1] - 1.0).abs() < 1e-9 && curve[3] < 1.2);
    }
}
