//! The official client's own test server, as it comes: `official-server PORT DIRECTORY` serves on loopback until it is
//! killed. It keeps what it is sent in files and syncs none of them.

use anyhow::bail;
use xet_client::cas_client::{LocalServer, LocalServerConfig};
use xet_runtime::core::XetContext;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, directory] = args.as_slice() else {
        bail!("usage: official-server PORT DIRECTORY");
    };
    let config = LocalServerConfig {
        data_directory: directory.into(),
        host: "127.0.0.1".to_owned(),
        port: port.parse()?,
        in_memory: false,
    };
    LocalServer::new(XetContext::default()?, config).await?.run().await?;
    Ok(())
}
