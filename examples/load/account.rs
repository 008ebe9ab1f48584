//! The kernel's account of a server: time on the processor, memory, bytes from disk.

use std::fs;
use std::time::Instant;

use anyhow::Context;
use rustix::param::clock_ticks_per_second;

/// The processes to look at: one and its children.
pub(crate) struct Account {
    pids: Vec<u32>,
}

/// The account when something began.
pub(crate) struct OpenRegistration<'a> {
    account: &'a Account,
    cpu_secs: f64,
    client_cpu_secs: f64,
    disk_len: u64,
    time: Instant,
}

/// What it took.
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) cpu_secs: f64,
    pub(crate) client_cpu_secs: f64,
    /// Bytes that came from disk.
    pub(crate) disk_len: u64,
    /// The most memory that was resident at any time.
    pub(crate) peak_rss: u64,
}

impl Account {
    /// Of this process and those that it has started; of none, all zeros.
    pub(crate) fn new(pid: Option<u32>) -> Self {
        let children = pid.into_iter().flat_map(|parent| {
            let all = fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            pids.filter(move |pid: &u32| fields(&pid.to_string()).is_ok_and(|fields| fields[1] == parent))
        });
        let pids = pid.into_iter().chain(children).collect();
        Self { pids }
    }

    /// Starts to count, the peak of memory from here on.
    pub(crate) fn begin(&self) -> anyhow::Result<OpenRegistration<'_>> {
        for pid in &self.pids {
            let path = format!("/proc/{pid}/clear_refs");
            let mut file = fs::File::options().write(true).open(&path).context(path)?;
            std::io::Write::write_all(&mut file, b"5")?;
        }
        Ok(OpenRegistration {
            account: self,
            cpu_secs: self.cpu_secs()?,
            client_cpu_secs: cpu_secs("self")?,
            disk_len: self.sum("io", "read_bytes:")?,
            time: Instant::now(),
        })
    }

    fn cpu_secs(&self) -> anyhow::Result<f64> {
        self.pids.iter().map(|pid| cpu_secs(&pid.to_string())).sum()
    }

    /// A line of a file that all of the processes have, summed up.
    fn sum(&self, file: &str, name: &str) -> anyhow::Result<u64> {
        let values = self.pids.iter().map(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)).context("a line of the kernel's")?;
            Ok(line.trim().trim_end_matches(" kB").parse::<u64>()?)
        });
        values.sum()
    }
}

impl OpenRegistration<'_> {
    pub(crate) fn end(&self) -> anyhow::Result<Cost> {
        let seconds = self.time.elapsed().as_secs_f64();
        Ok(Cost {
            seconds,
            cpu_secs: self.account.cpu_secs()? - self.cpu_secs,
            client_cpu_secs: cpu_secs("self")? - self.client_cpu_secs,
            disk_len: self.account.sum("io", "read_bytes:")? - self.disk_len,
            peak_rss: self.account.sum("status", "VmHWM:")? << 10,
        })
    }
}

/// Seconds on the processor of all threads that a process has or had.
#[expect(clippy::cast_precision_loss, reason = "seconds for people")]
fn cpu_secs(pid: &str) -> anyhow::Result<f64> {
    let fields = fields(pid)?;
    Ok((fields[11] + fields[12]) as f64 / clock_ticks_per_second() as f64)
}

/// The numbers of a process, from its state on (field 3 of proc(5), which is 0 here); negative ones are 0, too.
fn fields(pid: &str) -> anyhow::Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may have anything in it.
    let (_, rest) = text.rsplit_once(')').context("a line of the kernel's")?;
    Ok(rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
}
