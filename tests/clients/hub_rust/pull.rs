//! What a program with the crate `hf-hub` 0.5 does: `pull NAMESPACE CACHE` downloads each file of a
//! repository, and prints its name and where it is.

use hf_hub::api::sync::ApiBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, namespace, cache] = &arguments[..] else { panic!("pull NAMESPACE CACHE") };
    let builder = ApiBuilder::new().with_endpoint(std::env::var("HF_ENDPOINT")?).with_cache_dir(cache.into());
    let api = builder.with_token(Some(std::env::var("HF_TOKEN")?)).with_progress(false).build()?;
    let repo = api.model(format!("{namespace}/rust"));
    for sibling in repo.info()?.siblings {
        println!("{}\t{}", sibling.rfilename, repo.get(&sibling.rfilename)?.display());
    }
    Ok(())
}
