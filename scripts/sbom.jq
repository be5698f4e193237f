# Makes a CycloneDX 1.6 SBOM of what "go version -m -json" says about a program of this module.
def purl: "pkg:golang/" + .Path + "@" + .Version;
def component: {
  type: "library", "bom-ref": purl, name: .Path, version: .Version, purl: purl, scope: "required"
};
("pkg:golang/" + .Main.Path + "@" + $version) as $self
| [.Deps[] | .Replace // . | component] as $modules
| [{type: "library", "bom-ref": "go", name: "std", version: (.GoVersion | ltrimstr("go")),
    purl: ("pkg:golang/std@" + (.GoVersion | ltrimstr("go"))), scope: "required"}] as $std
| {libibverbs: "rdma-core", librdmacm: "rdma-core", libssl: "OpenSSL", libcrypto: "OpenSSL"} as $of
| ($of | keys_unsorted) as $linked
| {
    bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
    metadata: {component: {
      type: "application", "bom-ref": $self, name: "nvmf-target", version: $version, purl: $self,
      licenses: [{license: {id: "Apache-2.0"}}]
    }},
    components: ($modules + $std + [$linked[] | {
      type: "library", "bom-ref": ., name: ., scope: "required",
      description: "of \($of[.]), linked when the program starts"
    }]),
    dependencies: [{ref: $self, dependsOn: ([$modules[], $std[] | ."bom-ref"] + $linked)}]
  }
