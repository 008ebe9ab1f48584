//! A connection on which the test decides every byte and every pause, and sees every byte that comes back.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{Response, TestServer};

/// A connection to a server.
#[derive(Debug)]
pub struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    pub async fn connect(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.address()).await.expect("the server listens");
        stream.set_nodelay(true).expect("the socket is open");
        Self { stream: BufReader::new(stream) }
    }

    /// Connects from this address, of which loopback has many.
    pub async fn connect_from(server: &TestServer, address: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{address}:0").parse().expect("an address")).expect("all of 127.0.0.0/8 is ours");
        let stream = socket.connect(server.address().parse().expect("an address")).await.expect("the server listens");
        Self { stream: BufReader::new(stream) }
    }

    /// Connects and sends the head of an upload that declares so many bytes.
    pub async fn begin_upload(server: &TestServer, path: &str, len: usize) -> Self {
        let mut connection = Self::connect(server).await;
        connection.send(format!("POST {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n")).await;
        connection
    }

    /// The same, and waits until the server asks for the body.
    pub async fn begin_awaited(server: &TestServer, path: &str, len: usize) -> Self {
        let mut connection = Self::connect(server).await;
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: zorb\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n");
        connection.send(head).await;
        assert_eq!(connection.head().await.status, 100);
        connection
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).await.expect("the server takes the bytes");
    }

    /// The same where the server may hang up.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Says that nothing more will be sent.
    pub async fn finish_sending(&mut self) {
        self.stream.shutdown().await.expect("the connection is open");
    }

    /// Reads the head of a response, which may be a 100.
    pub async fn head(&mut self) -> Response {
        let status_line = self.line().await;
        let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {status_line:?}"));
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return Response { status, headers, body: Bytes::new() };
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header has a name");
            headers.append(name, HeaderValue::from_str(value.trim()).expect("a header is text"));
        }
    }

    /// Reads a response with a `Content-Length`, and leaves the connection behind it.
    pub async fn response(&mut self) -> Response {
        let mut response = self.head().await;
        let len = response.header("content-length").parse().expect("a length is a number");
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body).await.expect("the body is as long as declared");
        response.body = body.into();
        response
    }

    /// Reads exactly so many bytes.
    pub async fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).await.expect("the server sends that much");
        bytes
    }

    /// Reads what comes, at most so many bytes; returns how many, and 0 where the connection has ended in whatever way.
    pub async fn read_some(&mut self, len: usize) -> usize {
        self.stream.read(&mut vec![0; len]).await.unwrap_or_default()
    }

    /// The status of the next response, which is read to its end; `None` where the connection has ended.
    pub async fn status(&mut self) -> Option<u16> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await {
            Ok(len) if len > 0 => {}
            _ => return None,
        }
        let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let mut len = 0;
        while line != "\r\n" {
            line.clear();
            self.stream.read_line(&mut line).await.ok().filter(|len| *len > 0)?;
            if let Some(value) = line.strip_prefix("content-length: ") {
                len = value.trim().parse().ok()?;
            }
        }
        self.read(len).await;
        Some(status)
    }

    /// Reads until the server ends the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).await.expect("the server ends the connection in order");
        bytes
    }

    /// Reads until the connection ends, in order or not.
    pub async fn drain(&mut self) {
        let _ = self.stream.read_to_end(&mut Vec::new()).await;
    }

    /// Whether nothing has arrived so far. Takes nothing away.
    pub async fn is_silent(&mut self) -> bool {
        let arrived = timeout(Duration::ZERO, self.stream.get_ref().peek(&mut [0])).await;
        self.stream.buffer().is_empty() && arrived.is_err()
    }

    /// Ends the connection with a reset instead of in order.
    pub fn reset(self) {
        self.stream.get_ref().set_zero_linger().expect("the socket is open");
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("the server responds with text");
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no end of line: {line:?}")).to_owned()
    }
}
