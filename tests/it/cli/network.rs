//! Networks and servers that misbehave: a proxy that cuts connections, and a server that says what a test wants.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::select;

/// What happens to a connection.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// It is forwarded to its end.
    Never,
    /// It breaks after so many bytes from the client.
    Up(u64),
    /// It breaks after so many bytes from the server.
    Down(u64),
    /// Nothing comes any more after so many bytes from the server.
    Stall(u64),
}

/// A proxy between a client and a server.
#[derive(Debug)]
pub struct Proxy {
    pub url: String,
    traffic: Arc<Mutex<Traffic>>,
    runtime: Option<Runtime>,
}

/// What went through.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The first bytes that came from the client, per connection.
    pub requests: Vec<String>,
    /// Bytes that came from the server, in all.
    pub down_len: u64,
}

impl Proxy {
    /// A proxy that treats its first connections like this, and forwards the others.
    pub fn start(server: &str, cuts: &[Cut]) -> Self {
        let (server, cuts) = (server.to_owned(), cuts.to_vec());
        let traffic = Arc::new(Mutex::new(Traffic::default()));
        let shared = Arc::clone(&traffic);
        let (url, runtime) = listen(move |index, client| {
            let (server, traffic) = (server.clone(), Arc::clone(&shared));
            let cut = cuts.get(index).copied().unwrap_or(Cut::Never);
            traffic.lock().unwrap().requests.push(String::new());
            async move {
                let server = TcpStream::connect(server).await.expect("the server is there");
                forward(client, server, cut, index, &traffic).await;
            }
        });
        Self { url, traffic, runtime: Some(runtime) }
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Forwards until one side ends or the connection is to be cut; then both ends are dropped.
async fn forward(client: TcpStream, server: TcpStream, cut: Cut, index: usize, traffic: &Mutex<Traffic>) {
    let (up_limit, down_limit) = match cut {
        Cut::Never => (u64::MAX, u64::MAX),
        Cut::Up(limit) => (limit, u64::MAX),
        Cut::Down(limit) | Cut::Stall(limit) => (u64::MAX, limit),
    };
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    let up = pump(client_in.take(up_limit), server_out, |bytes| {
        let request = &mut traffic.lock().unwrap().requests[index];
        if request.len() < 4096 {
            request.push_str(&String::from_utf8_lossy(bytes));
        }
    });
    let down = pump(server_in.take(down_limit), client_out, |bytes| {
        traffic.lock().unwrap().down_len += bytes.len() as u64;
    });
    select! {
        _out = up => {}
        _out = down => {
            if matches!(cut, Cut::Stall(_)) {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Copies to the end and gives the target back, so that it is not closed before the connection is.
async fn pump<W: AsyncWrite + Unpin>(
    mut source: impl AsyncRead + Unpin,
    mut target: W,
    mut seen: impl FnMut(&[u8]),
) -> W {
    let mut buffer = vec![0; 16 << 10];
    // An error of either side ends the connection like its end does.
    while let Ok(len @ 1..) = source.read(&mut buffer).await {
        seen(&buffer[..len]);
        if target.write_all(&buffer[..len]).await.is_err() {
            break;
        }
    }
    target
}

/// A server that responds to each request with what a function says, and closes the connection.
#[derive(Debug)]
pub struct Script {
    pub url: String,
    requests: Arc<Mutex<Vec<String>>>,
    runtime: Option<Runtime>,
}

impl Script {
    /// The function gets the number of the request, from 0, and its head.
    pub fn start(response: impl Fn(usize, &str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let (response, requests) = (Arc::new(response), Arc::new(Mutex::new(Vec::new())));
        let shared = Arc::clone(&requests);
        let (url, runtime) = listen(move |index, mut client| {
            let (response, requests) = (Arc::clone(&response), Arc::clone(&shared));
            async move {
                let Some(head) = read_request(&mut client).await else { return };
                let bytes = response(index, &head);
                requests.lock().unwrap().push(head);
                // The client may have gone.
                let _ = client.write_all(&bytes).await;
                let _ = client.shutdown().await;
            }
        });
        Self { url, requests, runtime: Some(runtime) }
    }

    /// The heads of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A response with these headers and a length.
pub fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads a request with its body; returns its head in lower case.
async fn read_request(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("requests are text").to_ascii_lowercase();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    client.read_exact(&mut body).await.ok()?;
    Some(head)
}

/// Listens on a free port, on threads of its own.
fn listen<F>(handle: impl Fn(usize, TcpStream) -> F + Send + 'static) -> (String, Runtime)
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads are free");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let url = format!("http://{}", listener.local_addr().unwrap());
    let handler = runtime.handle().clone();
    runtime.spawn(async move {
        for index in 0.. {
            let (client, _) = listener.accept().await.expect("the listener is there");
            handler.spawn(handle(index, client));
        }
    });
    (url, runtime)
}
