//! One route: its methods and paths, its limits and required scope, and its OpenAPI description.

use std::collections::BTreeSet;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::ToSchema;
use utoipa::openapi::path::HttpMethod;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{Ref, RefOr};

use super::audit::AuditedRoute;
use super::auth::{Auth, admit_anonymous, guard};
use super::cost::{CostClass, bounded};
use super::error::Problem;
use super::{AppState, schema};
use crate::service::access::Scope;

/// A route. [`Route::get`] and the other methods create it, and further methods add its limits and
/// its description.
pub(super) struct Route {
    pub(super) method: HttpMethod,
    /// The patterns of its paths. The first is its name in the audit log, the others are for older
    /// clients.
    pub(super) paths: Vec<&'static str>,
    /// The scope that a token needs; `None` if no token is needed.
    pub(super) needs: Option<Scope>,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Content>,
    pub(super) responses: Vec<Response>,
    /// Statuses of failures, in addition to those that [`Route::failures()`] finds by itself.
    failures: Vec<u16>,
    /// Whether it is in the audit log like a write, although it changes nothing in the store.
    is_audited: bool,
    /// How it refuses a token, if not as most routes.
    refuse: Option<Refuse>,
    /// Makes of its response to a request without a token what the client gets. `None` if it shows
    /// nothing without a token.
    anonymous: Option<Anonymous>,
    /// The limits that apply before the handler runs.
    cost: CostClass,
    handler: MethodRouter<AppState>,
}

/// The response to a request with a token, or without one, that a route refuses.
pub(super) type Refuse = fn(Problem, bool) -> axum::response::Response;

/// What a client without a token gets instead of this response.
pub(super) type Anonymous = fn(axum::response::Response) -> axum::response::Response;

/// A parameter that is not part of the path.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) is_header: bool,
    pub(super) is_required: bool,
    pub(super) description: &'static str,
    pub(super) schema: RefOr<Schema>,
}

/// A successful response.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) description: &'static str,
    pub(super) content: Option<Content>,
}

/// The media type and schema of a body.
pub(super) struct Content {
    pub(super) media_type: &'static str,
    pub(super) schema: RefOr<Schema>,
    /// The schemas that `schema` refers to, by name.
    pub(super) components: Vec<(String, RefOr<Schema>)>,
}

impl Content {
    /// Bytes of any kind, or text that is not JSON.
    pub(super) fn bytes(media_type: &'static str) -> Self {
        Self { media_type, schema: schema::binary(), components: Vec::new() }
    }

    /// JSON of this type.
    pub(super) fn json<T: ToSchema>() -> Self {
        let mut components = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut components);
        Self { media_type: "application/json", schema: RefOr::Ref(Ref::from_schema_name(T::name())), components }
    }
}

impl Route {
    /// A route for one method and one path. `needs` is the scope of its token.
    fn new<H, T>(
        (method, filter): (HttpMethod, MethodFilter),
        path: &'static str,
        needs: impl Into<Option<Scope>>,
        handler: H,
    ) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self {
            method,
            paths: vec![path],
            needs: needs.into(),
            summary: "",
            parameters: Vec::new(),
            body: None,
            responses: Vec::new(),
            failures: Vec::new(),
            is_audited: false,
            refuse: None,
            anonymous: None,
            cost: CostClass::Lookup,
            handler: on(filter, handler),
        }
    }

    /// A route for GET, which also serves HEAD.
    pub(super) fn get<H, T>(path: &'static str, needs: impl Into<Option<Scope>>, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self::new((HttpMethod::Get, MethodFilter::GET), path, needs, handler)
    }

    /// A route for HEAD, without GET.
    pub(super) fn head<H, T>(path: &'static str, needs: impl Into<Option<Scope>>, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self::new((HttpMethod::Head, MethodFilter::HEAD), path, needs, handler)
    }

    pub(super) fn post<H, T>(path: &'static str, needs: impl Into<Option<Scope>>, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self::new((HttpMethod::Post, MethodFilter::POST), path, needs, handler)
    }

    pub(super) fn delete<H, T>(path: &'static str, needs: impl Into<Option<Scope>>, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self::new((HttpMethod::Delete, MethodFilter::DELETE), path, needs, handler)
    }

    pub(super) fn put<H, T>(path: &'static str, needs: impl Into<Option<Scope>>, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        Self::new((HttpMethod::Put, MethodFilter::PUT), path, needs, handler)
    }

    /// Adds further paths, for older clients.
    pub(super) fn also(mut self, paths: &[&'static str]) -> Self {
        self.paths.extend_from_slice(paths);
        self
    }

    /// Sets the cost class; the default is `Lookup`.
    pub(super) const fn costs(mut self, cost: CostClass) -> Self {
        self.cost = cost;
        self
    }

    /// Makes the audit log treat the route like a write.
    pub(super) const fn audited(mut self) -> Self {
        self.is_audited = true;
        self
    }

    /// Sets how it refuses a token.
    pub(super) const fn refuses(mut self, refuse: Refuse) -> Self {
        self.refuse = Some(refuse);
        self
    }

    /// Makes it show public repositories without a token, if the settings permit that.
    pub(super) const fn shows_public(mut self, anonymous: Anonymous) -> Self {
        self.anonymous = Some(anonymous);
        self
    }

    /// Sets the summary, a line of text.
    pub(super) const fn says(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// Adds an optional query parameter, whose value is any text.
    pub(super) fn query(mut self, name: &'static str, description: &'static str) -> Self {
        let schema = schema::text();
        self.parameters.push(Parameter { name, is_header: false, is_required: false, description, schema });
        self
    }

    /// Adds an optional request header, whose value is any text.
    pub(super) fn header(mut self, name: &'static str, description: &'static str) -> Self {
        let schema = schema::text();
        self.parameters.push(Parameter { name, is_header: true, is_required: false, description, schema });
        self
    }

    /// Makes the parameter that was added last a required one.
    pub(super) fn required(mut self) -> Self {
        if let Some(parameter) = self.parameters.last_mut() {
            parameter.is_required = true;
        }
        self
    }

    /// Sets the schema of the parameter that was added last.
    pub(super) fn of(mut self, schema: RefOr<Schema>) -> Self {
        if let Some(parameter) = self.parameters.last_mut() {
            parameter.schema = schema;
        }
        self
    }

    /// Adds statuses of failures that [`Route::failures()`] does not find by itself.
    pub(super) fn fails(mut self, statuses: &[u16]) -> Self {
        self.failures.extend_from_slice(statuses);
        self
    }

    /// All statuses of failures with which the route may respond. Most follow from its other
    /// properties.
    pub(super) fn failures(&self, auth: Auth) -> BTreeSet<u16> {
        // Every route may respond with these: the tenant is over its share, a bug, an overload.
        let mut statuses: BTreeSet<u16> = self.failures.iter().copied().chain([429, 500, 503]).collect();
        if self.needs.is_some() && auth == Auth::Tokens {
            statuses.extend([401, 403]);
        }
        let names_a_hash = self.paths.iter().any(|path| path.contains('{'));
        if names_a_hash || !self.parameters.is_empty() || self.body.is_some() {
            statuses.insert(400);
        }
        if self.body.is_some() {
            statuses.extend([408, 413]);
        }
        if self.cost == CostClass::Upload {
            statuses.insert(507);
        }
        statuses
    }

    /// Sets the body of requests.
    pub(super) fn takes(mut self, body: Content) -> Self {
        self.body = Some(body);
        self
    }

    /// Adds a successful response.
    pub(super) fn responses(
        mut self,
        status: u16,
        description: &'static str,
        content: impl Into<Option<Content>>,
    ) -> Self {
        self.responses.push(Response { status, description, content: content.into() });
        self
    }

    /// The method of the route, in capitals.
    const fn method_name(&self) -> &'static str {
        name_of(&self.method)
    }

    /// What the audit log needs to know of the route.
    pub(super) fn in_audit_log(&self) -> AuditedRoute<'_> {
        let method = self.method_name();
        // A POST that needs only the scope `Read` changes nothing: it has its query in the body.
        let is_write = !matches!(method, "GET" | "HEAD") && self.needs != Some(Scope::Read);
        AuditedRoute { method, paths: &self.paths, changes: is_write || self.is_audited }
    }

    /// Adds the route to a router under each of its paths, with its limits and the check of tokens.
    pub(super) fn add_to(self, router: Router<AppState>, state: &AppState) -> Router<AppState> {
        let bound = (self.cost != CostClass::Upload).then(|| from_fn_with_state((state.clone(), self.cost), bounded));
        let is_open = state.shared.anonymous_read && state.shared.auth == Auth::Tokens;
        let guard = Guard { refuse: self.refuse, anonymous: self.anonymous.filter(|_| is_open) };
        let check = self.needs.map(|scope| from_fn_with_state((state.clone(), scope, guard), guard_route));
        // Both layers are added in one call, because each call of `route_layer` would copy all
        // layers inside it for each request. The first layer is the outer one: a request without a
        // valid token is refused before it waits for a permit.
        let handler = match (check, bound) {
            (Some(check), Some(bound)) => self.handler.route_layer((check, bound)),
            (Some(check), None) => self.handler.route_layer(check),
            (None, Some(bound)) => self.handler.route_layer(bound),
            (None, None) => self.handler,
        };
        self.paths.into_iter().fold(router, |router, path| router.route(path, handler.clone()))
    }
}

/// How a route checks tokens.
#[derive(Clone, Copy)]
struct Guard {
    refuse: Option<Refuse>,
    anonymous: Option<Anonymous>,
}

/// The check of the token, with refusals in the form of the route.
async fn guard_route(
    State((state, needed, Guard { refuse, anonymous })): State<(AppState, Scope, Guard)>,
    request: Request,
    next: Next,
) -> axum::response::Response {
    let has_token = request.headers().contains_key(AUTHORIZATION);
    let passed = match anonymous.filter(|_| !has_token) {
        Some(shown) => admit_anonymous(&state, request, next).await.map(shown),
        None => guard((state, needed, refuse.is_some()), request, next).await,
    };
    match (passed, refuse) {
        (Ok(response), _) => response,
        (Err(problem), None) => problem.into_response(),
        (Err(problem), Some(refuse)) => refuse(problem, has_token),
    }
}

/// A method in capitals.
pub(super) const fn name_of(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Head => "HEAD",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Options => "OPTIONS",
        HttpMethod::Trace => "TRACE",
    }
}
