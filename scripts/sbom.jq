# Makes a CycloneDX 1.6 SBOM from the output of "go version -m -json" for a program of this module.
def purl: "pkg:golang/" + .Path + "@" + .Version;
def component: {
  type: "library", "bom-ref": purl, name: .Path, version: .Version, purl: purl, scope: "required"
};
("pkg:golang/" + .Main.Path + "@" + $version) as $self
| [.Deps[] | .Replace // . | component] as $modules
| [{type: "library", "bom-ref": "go", name: "std", version: (.GoVersion | ltrimstr("go")),
    purl: ("pkg:golang/std@" + (.GoVersion | ltrimstr("go"))), scope: "required"}] as $std
| {type: "library", "bom-ref": "pkg:npm/uplot@1.6.32", name: "uplot", version: "1.6.32",
    purl: "pkg:npm/uplot@1.6.32", scope: "required",
    licenses: [{license: {id: "MIT"}}]} as $npm # of the page, in internal/web/static
| {libibverbs: "rdma-core", librdmacm: "rdma-core", libssl: "OpenSSL", libcrypto: "OpenSSL"} as $of
| ($of | keys_unsorted) as $linked
| {
    bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
    metadata: {component: {
      type: "application", "bom-ref": $self, name: "nvmf-target", version: $version, purl: $self,
      licenses: [{license: {id: "Apache-2.0"}}]
    }},
    components: ($modules + $std + [$npm] + [$linked[] | {
      type: "library", "bom-ref": ., name: ., scope: "required",
      description: "of \($of[.]), linked when the program starts"
    }]),
    dependencies: [{ref: $self, dependsOn: ([$modules[], $std[], $npm | ."bom-ref"] + $linked)}]
  }
