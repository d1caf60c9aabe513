//! Prices as data, which a user may replace in part.

use super::{BILLED_GB_BYTES, DAY_S, DAYS_PER_MONTH, HOUR_S, quantity};

use gristmill_model::Usd;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An invalid price.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("price `{field}` is {value}: give a number of {least} or more{most}")]
pub struct PriceError {
    pub field: &'static str,
    pub value: f64,
    least: &'static str,
    most: &'static str,
}

/// Prices of one region at one time.
///
/// The defaults are AWS's list prices of us-east-1 without free tiers and discounts, as of November
/// 2026 (pages "AWS Lambda pricing", "Amazon S3 pricing", "Amazon DynamoDB pricing" for on-demand
/// tables, "Amazon EC2 On-Demand pricing"). S3 requests and storage, and the instance,
/// were not re-checked then. Users who replace a price should update `source` and `checked`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriceList {
    /// Provider and region, printed beside figures.
    pub source: String,
    /// Year and month of the last check.
    pub checked: String,
    pub function: FunctionPrices,
    pub objects: ObjectPrices,
    pub table: TablePrices,
    pub transfer: TransferPrices,
    /// The instance that would run workers instead of functions.
    pub instance: InstancePrices,
    /// Price of the trainer with its accelerators; 0 ignores it.
    pub accelerator_usd_per_hour: f64,
}

/// Functions: memory x time, and requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionPrices {
    pub arm64_usd_per_gb_second: f64,
    pub x86_64_usd_per_gb_second: f64,
    pub usd_per_million_requests: f64,
}

/// The object store (S3 Standard).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectPrices {
    pub usd_per_thousand_puts: f64,
    pub usd_per_thousand_gets: f64,
    pub usd_per_gb_month: f64,
}

/// The table, on demand: a write unit is 1 KB, a read unit 4 KB.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TablePrices {
    pub usd_per_million_writes: f64,
    pub usd_per_million_reads: f64,
}

/// Data transfer. Free within one region; billed between regions, out of AWS or through a NAT
/// gateway.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransferPrices {
    /// From the dataset to the workers.
    pub source_usd_per_gb: f64,
    /// From the objects to the trainer.
    pub delivery_usd_per_gb: f64,
}

/// Instances that would run workers instead of functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstancePrices {
    pub name: String,
    pub usd_per_vcpu_hour: f64,
    /// Fraction of the paid time in which it works, above 0 and at most 1.
    pub utilisation: f64,
    /// Fee for Lambda Managed Instances, as a share of the instances' price.
    pub managed_fee: f64,
    /// Sustained, in each direction, per vCPU.
    pub network_mb_per_s_per_vcpu: f64,
}

impl Default for PriceList {
    fn default() -> Self {
        PriceList {
            source: "AWS list prices, us-east-1".into(),
            checked: "2026-11".into(),
            function: FunctionPrices::default(),
            objects: ObjectPrices::default(),
            table: TablePrices::default(),
            transfer: TransferPrices::default(),
            instance: InstancePrices::default(),
            accelerator_usd_per_hour: 0.0,
        }
    }
}

impl Default for FunctionPrices {
    fn default() -> Self {
        FunctionPrices {
            arm64_usd_per_gb_second: 0.000_013_333_4,
            x86_64_usd_per_gb_second: 0.000_016_666_7,
            usd_per_million_requests: 0.20,
        }
    }
}

impl Default for ObjectPrices {
    fn default() -> Self {
        ObjectPrices {
            usd_per_thousand_puts: 0.005,
            usd_per_thousand_gets: 0.0004,
            usd_per_gb_month: 0.023,
        }
    }
}

impl Default for TablePrices {
    fn default() -> Self {
        TablePrices { usd_per_million_writes: 0.625, usd_per_million_reads: 0.125 }
    }
}

impl Default for InstancePrices {
    fn default() -> Self {
        InstancePrices {
            name: "c7g".into(),
            // c7g.large: $0.0725 an hour, 2 vCPUs.
            usd_per_vcpu_hour: 0.036_25,
            // A pool that is sized for its peak and kept up between jobs.
            utilisation: 0.60,
            // <https://aws.amazon.com/lambda/pricing/>: 15 % of the on-demand price.
            managed_fee: 0.15,
            // c7g.large: 0.937 Gbit/s baseline, 2 vCPUs.
            network_mb_per_s_per_vcpu: 58.0,
        }
    }
}

impl PriceList {
    /// Checks that all prices are valid. The error names the first price that is negative or not a
    /// number, or a utilisation outside (0, 1].
    pub fn check(&self) -> Result<(), PriceError> {
        let PriceList { function, objects, table, transfer, instance, .. } = self;
        let prices = [
            ("function.arm64_usd_per_gb_second", function.arm64_usd_per_gb_second),
            ("function.x86_64_usd_per_gb_second", function.x86_64_usd_per_gb_second),
            ("function.usd_per_million_requests", function.usd_per_million_requests),
            ("objects.usd_per_thousand_puts", objects.usd_per_thousand_puts),
            ("objects.usd_per_thousand_gets", objects.usd_per_thousand_gets),
            ("objects.usd_per_gb_month", objects.usd_per_gb_month),
            ("table.usd_per_million_writes", table.usd_per_million_writes),
            ("table.usd_per_million_reads", table.usd_per_million_reads),
            ("transfer.source_usd_per_gb", transfer.source_usd_per_gb),
            ("transfer.delivery_usd_per_gb", transfer.delivery_usd_per_gb),
            ("instance.usd_per_vcpu_hour", instance.usd_per_vcpu_hour),
            ("instance.network_mb_per_s_per_vcpu", instance.network_mb_per_s_per_vcpu),
            ("instance.managed_fee", instance.managed_fee),
            ("accelerator_usd_per_hour", self.accelerator_usd_per_hour),
        ];
        for (field, value) in prices {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PriceError { field, value, least: "0", most: "" });
            }
        }
        let value = instance.utilisation;
        if !(value > 0.0 && value <= 1.0) {
            let field = "instance.utilisation";
            return Err(PriceError { field, value, least: "0.01", most: ", at most 1" });
        }
        Ok(())
    }

    /// Price of `bytes` kept for `seconds`.
    pub fn stored(&self, bytes: f64, seconds: f64) -> Usd {
        let gb_months =
            quantity(bytes) / BILLED_GB_BYTES * quantity(seconds) / (DAY_S * DAYS_PER_MONTH);
        Usd(gb_months * quantity(self.objects.usd_per_gb_month))
    }

    /// Price of the trainer for `seconds`.
    pub fn accelerator(&self, seconds: f64) -> Usd {
        Usd(quantity(seconds) / HOUR_S * quantity(self.accelerator_usd_per_hour))
    }

    /// Price of bytes read from the dataset and bytes read by the trainer.
    pub fn transferred(&self, source_bytes: f64, delivered_bytes: f64) -> Usd {
        let TransferPrices { source_usd_per_gb, delivery_usd_per_gb } = self.transfer;
        let gb = |bytes: f64| quantity(bytes) / BILLED_GB_BYTES;
        Usd(gb(source_bytes) * quantity(source_usd_per_gb)
            + gb(delivered_bytes) * quantity(delivery_usd_per_gb))
    }
}
