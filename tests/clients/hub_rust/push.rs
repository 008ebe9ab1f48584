//! What a program with the crate `hf-hub` 1.0 does, as the user NAMESPACE: `push NAMESPACE FROM TO`.

use hf_hub::HFClient;
use hf_hub::repository::{AddSource, RepoTypeModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, namespace, from, to] = &arguments[..] else { panic!("push NAMESPACE FROM TO") };
    let (endpoint, token) = (std::env::var("HF_ENDPOINT")?, std::env::var("HF_TOKEN")?);
    let client = HFClient::builder().endpoint(endpoint).token(token).cache_dir(format!("{to}-cache")).build_sync()?;
    assert_eq!(&client.whoami().send()?.username, namespace);
    let id = format!("{namespace}/rust");
    client.create_repository().repo_id(&id).repo_type(RepoTypeModel).private(true).send()?;
    let repo = client.model(namespace.as_str(), "rust");
    repo.upload_folder().folder_path(from.as_str()).commit_message("a directory").send()?;
    let source = AddSource::bytes(b"one more".to_vec());
    let more = repo.upload_file().source(source).path_in_repo("more.txt").commit_message("a file").send()?;
    let titles: Vec<String> = repo.list_commits().send()?.into_iter().map(|commit| commit.title).collect();
    assert_eq!(titles, ["a file", "a directory", "initial commit"]);
    assert!(repo.list_tree().recursive(true).expand(true).send()?.len() > 3);
    repo.create_branch().branch("b").send()?;
    repo.create_tag().tag("v1").send()?;
    let refs = repo.list_refs().send()?;
    assert_eq!((refs.branches.len(), refs.tags.len()), (2, 1));
    repo.delete_branch().branch("b").send()?;
    repo.delete_tag().tag("v1").send()?;
    let listed = client.list_models().author(namespace.as_str()).send()?;
    assert_eq!(listed.iter().map(|model| model.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    assert_eq!(repo.info().send()?.sha, more.commit_oid);
    repo.delete_file().path_in_repo("more.txt").commit_message("without it").send()?;
    assert!(!repo.file_exists().filename("more.txt").send()?);
    repo.snapshot_download().local_dir(to.as_str()).send()?;
    Ok(())
}
