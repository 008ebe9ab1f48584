//! Every route there is, as the server itself lists them.

use super::Client;

/// A route, with something in place of its parameters.
#[derive(Clone, Debug)]
pub struct RouteCase {
    /// In capitals.
    pub method: String,
    /// With parameters in braces.
    pub template: String,
    /// Where the template is an alias, the template that it stands for.
    pub canonical: String,
    /// The scope of the token that it takes, where tokens are asked for.
    pub scope: Option<String>,
}

impl RouteCase {
    /// The path with this in place of every parameter.
    pub fn path(&self, value: &str) -> String {
        let pieces = self.template.split(['{', '}']).enumerate();
        pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { value }).collect()
    }
}

/// Every route and alias.
pub async fn routes(client: &Client) -> Vec<RouteCase> {
    let document = client.get("/openapi.json").await.json();
    let mut found = Vec::new();
    for (template, item) in document["paths"].as_object().expect("the document has paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let alias_of = operation["description"].as_str().and_then(|text| text.split('`').nth(1));
            let scope = operation["security"].as_array().and_then(|list| list.first());
            let scope = scope.and_then(|needs| needs.as_object()?.values().next()?.get(0)?.as_str());
            found.push(RouteCase {
                method: method.to_uppercase(),
                template: template.clone(),
                canonical: alias_of.unwrap_or(template).to_owned(),
                scope: scope.map(str::to_owned),
            });
        }
    }
    assert!(found.len() >= 40, "{found:?}");
    found
}
