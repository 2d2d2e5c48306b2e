// Package release builds releases of containerd, of Kubernetes, of cosign, of critest, of Helm and of a webhook from
// source.
// What was built stays in the cache folder of the user; tools pins the versions, a folder for each. Modules below what
// is tested, such as golang.org/x and protobuf, have the versions of this repository there, so that k8s.io/api and all
// else above them is compiled once. CEL, gRPC and the like of Kubernetes, on which tests may depend, are as released.
package release

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// Releases of containerd that are built here, by the folder below tools that pins them. The older ones have the modules
// of the newest, which are compiled once then.
const (
	// Containerd21 creates a container from a checkpoint image on whatever image the checkpoint names, and pulls it first.
	Containerd21 = "containerd-2.1"
	// Containerd22 takes the image that a checkpoint names from the node if it is there, and gives it the name
	// that the checkpoint names; 2.2.0 to 2.2.4 and 2.3.0 to 2.3.1 do.
	Containerd22 = "containerd-2.2"
	// Containerd24 is the newest one.
	Containerd24 = "containerd-2.4"
)

// Releases of Kubernetes that are built here: of 1.30 and 1.37 kube-apiserver too, of the others only the kubelet,
// which runs under kube-apiserver 1.37.
const (
	Kubernetes130 = "1.30"
	Kubernetes134 = "1.34"
	Kubernetes136 = "1.36"
	Kubernetes137 = "1.37"
)

// The releases of cosign and of critest, by the folders below tools that pin them.
const (
	cosign31    = "cosign-3.1"
	criTools137 = "cri-tools-1.37"
)

// A recipe defines how the programs of a folder below tools are built.
type recipe struct {
	what     string   // as it is called when it is built
	module   string   // whose version the folder pins
	programs []string // packages
	tags     string
	stamp    []string // what the linker writes into them, with %s for the version
	test     bool     // the programs are tests of packages
	brief    bool     // they run little, and are compiled without inlining, which takes a fifth less
	name     string   // of the folder of the cache, if it is not that of the folder below tools
}

// Containerd builds a containerd of a release and its shim unless they are built, and returns the path of containerd.
func Containerd(ctx context.Context, release string) (string, error) {
	const module = "github.com/containerd/containerd/v2"
	dir, err := recipe{
		what: "containerd", module: module, tags: "no_btrfs,no_zfs,no_devmapper",
		stamp:    []string{module + "/version.Version=%s"},
		programs: []string{module + "/cmd/containerd", module + "/cmd/containerd-shim-runc-v2"},
	}.build(ctx, release)
	return filepath.Join(dir, "containerd"), err
}

// Kubernetes builds a program of a release of Kubernetes, such as "kubelet", as Containerd does, and returns its path.
func Kubernetes(ctx context.Context, release, program string) (string, error) {
	return kubernetes(ctx, release, "k8s.io/kubernetes/cmd/"+program)
}

// PodSecurityWebhook builds the admission webhook for the Pod Security Standards, as Containerd does, and returns its
// path.
func PodSecurityWebhook(ctx context.Context) (string, error) {
	return kubernetes(ctx, Kubernetes137, "k8s.io/pod-security-admission/cmd/webhook")
}

func kubernetes(ctx context.Context, release, program string) (string, error) {
	const v = "k8s.io/component-base/version."
	major, minor, _ := strings.Cut(release, ".")
	name := path.Base(program)
	dir, err := recipe{
		what: name + " of Kubernetes", module: "k8s.io/kubernetes", programs: []string{program}, tags: "providerless",
		stamp: []string{v + "gitVersion=v%s", v + "gitMajor=" + major, v + "gitMinor=" + minor},
		name:  strings.TrimPrefix(name, "kube-"), brief: release == Kubernetes130 || release == Kubernetes136,
	}.build(ctx, "kubernetes-"+release)
	return filepath.Join(dir, name), err
}

// Cosign builds cosign, as Containerd does, and returns its path.
func Cosign(ctx context.Context) (string, error) {
	const module = "github.com/sigstore/cosign/v3"
	dir, err := recipe{
		what: "cosign", module: module, programs: []string{"./cosign"},
		stamp: []string{"sigs.k8s.io/release-utils/version.gitVersion=v%s"},
	}.build(ctx, cosign31)
	return filepath.Join(dir, "cosign"), err
}

// Critest builds critest, the conformance tests of the CRI, as Containerd does, and returns its path.
func Critest(ctx context.Context) (string, error) {
	const module = "sigs.k8s.io/cri-tools"
	dir, err := recipe{
		what: "critest", module: module, programs: []string{module + "/cmd/critest"}, test: true,
		stamp: []string{module + "/pkg/version.Version=%s"},
	}.build(ctx, criTools137)
	return filepath.Join(dir, "critest.test"), err // as the go command calls it
}

// Helm builds Helm of a major version, "3" or "4", as Containerd does, and returns its path.
func Helm(ctx context.Context, major string) (string, error) {
	module := "helm.sh/helm/v" + major
	r := recipe{what: "helm", module: module, programs: []string{module + "/cmd/helm"}}
	if major == "3" { // it renders for a Kubernetes that the linker sets, and is 1.20 without
		for _, v := range []string{"pkg/lint/rules.k8sVersion", "pkg/chartutil.k8sVersion"} {
			r.stamp = append(r.stamp, module+"/"+v+"Major=1", module+"/"+v+"Minor=37")
		}
	}
	dir, err := r.build(ctx, "helm")
	return filepath.Join(dir, "helm"), err
}

// build returns the folder with the programs that a folder below tools pins, built if they are not.
func (r recipe) build(ctx context.Context, folder string) (_ string, err error) {
	defer host.Catch(&err)
	sources := host.Must(host.Upward(filepath.Join("tools", folder), filepath.Join("e2e", "tools", folder)))
	version, key := r.pinned(sources)
	name, _, _ := strings.Cut(cmp.Or(r.name, folder), "-")
	return host.Cached(ctx, r.what+" "+version, name+"-"+version+"-"+key, func(ctx context.Context, out string) error {
		// Two at once would compile twice what both need.
		defer host.Must(host.Lock(filepath.Join(filepath.Dir(out), folder+".lock")))()
		return r.compile(ctx, sources, version, out)
	})
}

// pinned returns the version that a folder of tools pins, and a key for all that it pins with it.
func (r recipe) pinned(sources string) (version, key string) {
	mod := host.Must(os.ReadFile(filepath.Join(sources, "go.mod")))
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(r.module) + ` v(\S+)`).FindSubmatch(mod)
	if m == nil {
		host.Check(fmt.Errorf("%s/go.mod pins no %s", sources, r.module))
	}
	sum := sha256.Sum256(fmt.Append(mod, runtime.Version(), runtime.GOARCH))
	return string(m[1]), hex.EncodeToString(sum[:])[:8]
}

func (r recipe) compile(ctx context.Context, sources, version, out string) error {
	flags := []string{"-s", "-w"}
	for _, s := range r.stamp {
		flags = append(flags, "-X", strings.Replace(s, "%s", version, 1))
	}
	command := []string{"build"}
	if r.test {
		command = []string{"test", "-c", "-vet=off"}
	}
	if r.brief {
		command = append(command, "-gcflags=all=-dwarf=false -l")
	}
	args := append(command,
		"-trimpath", "-buildvcs=false", "-mod=readonly", "-tags", r.tags,
		"-ldflags", strings.Join(flags, " "), "-o", out+"/",
	)
	cmd := exec.CommandContext(ctx, "go", append(args, r.programs...)...)
	cmd.Dir = sources
	// A limit that few compilations reach; the others collect no garbage.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC=off", "GOMEMLIMIT=1500MiB")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("from the module proxy: %w: %s", err, output[max(0, len(output)-2000):])
	}
	return nil
}
