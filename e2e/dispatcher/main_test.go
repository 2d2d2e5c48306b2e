// Package dispatcher_test runs two pullgate-dispatchers before a real kube-apiserver, with the rights of the chart and
// no others, and nodes that are played with the identities of kubelets. Each test has nodes and a Rollout of its own,
// and all of them share the two processes.
package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

const (
	namespace = "pullgate"
	account   = "system:serviceaccount:pullgate:pullgate-dispatcher"
	image     = "registry.example.com/pullgate:v1"
	// patience is longer than a change of the leader takes.
	patience = 90 * time.Second
)

// A fleet is a control plane with the chart and two dispatchers, which go with it.
type fleet struct {
	*cluster.Cluster
	dir         string
	objects     dynamic.Interface
	rollouts    dynamic.ResourceInterface
	dispatchers []*host.Process
	program     string
	kubeconfig  string
	metrics     []string
}

var fleets = host.NewShared(func(release string) (*fleet, error) { return start(context.Background(), release) })

func TestMain(m *testing.M) { os.Exit(fleets.Main(m)) }

func start(ctx context.Context, version string) (f *fleet, err error) {
	f = &fleet{dir: host.Must(os.MkdirTemp("", "pullgate-"))}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	defer host.Catch(&err)
	audit := host.Must(cluster.Audit(f.path("cluster"), "[{level: Metadata, users: ['"+account+"']}, {level: None}]"))
	f.Cluster = host.Must(cluster.Start(ctx, f.path("cluster"), version, "worker", audit...))
	f.objects = host.Must(dynamic.NewForConfig(f.Config(cluster.Administrator)))
	f.rollouts = f.objects.Resource(schema.GroupVersionResource{
		Group: "fleet.pullgate.dev", Version: "v1alpha1", Resource: "rollouts",
	})
	f.install(ctx)
	f.program = host.Must(node.Program("pullgate-dispatcher"))
	seconds := int64(3600)
	token := host.Must(f.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "pullgate-dispatcher",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})).Status.Token
	f.kubeconfig = f.path("kubeconfig")
	host.Check(os.WriteFile(f.kubeconfig, f.Kubeconfig("token: "+token), 0o600))
	f.dispatchers, f.metrics = make([]*host.Process, 2), make([]string, 2)
	for i := range f.dispatchers {
		host.Check(f.dispatch(ctx, i))
	}
	return f, nil
}

// install applies what the chart renders.
func (f *fleet) install(ctx context.Context) {
	helm := host.Must(release.Helm(ctx, "4"))
	chart := host.Must(host.Upward("docs/helm/pullgate"))
	text := host.Must(host.Run(ctx, helm, "template", "pullgate", chart, "--namespace", namespace, "--include-crds",
		"--set", "image.repository=registry.example.com/pullgate"))
	for _, name := range []string{namespace, corev1.NamespaceNodeLease} {
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := f.Client.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{})
		if err != nil && name == namespace {
			host.Check(err)
		}
	}
	for d := range strings.SplitSeq("\n"+text, "\n---") {
		o := &unstructured.Unstructured{}
		host.Check(yaml.Unmarshal([]byte(d), &o.Object))
		if o.Object == nil {
			continue
		}
		kind := strings.ToLower(o.GetKind())
		plural := map[string]string{
			"validatingadmissionpolicy": "validatingadmissionpolicies",
		}[kind]
		if plural == "" {
			plural = kind + "s"
		}
		in := f.objects.Resource(o.GroupVersionKind().GroupVersion().WithResource(plural)).Namespace(o.GetNamespace())
		host.Must(in.Create(ctx, o, metav1.CreateOptions{}))
	}
	if !host.Within(time.Minute, func() bool {
		_, err := f.rollouts.List(ctx, metav1.ListOptions{})
		return err == nil
	}) {
		host.Check(errors.New("the API server does not serve Rollouts after a minute"))
	}
}

// dispatch starts one of the two processes.
func (f *fleet) dispatch(ctx context.Context, i int) (err error) {
	defer host.Catch(&err)
	f.metrics[i] = fmt.Sprintf("127.0.0.1:%d", host.Must(host.FreePort()))
	name := fmt.Sprintf("dispatcher-%d", i)
	f.dispatchers[i], err = host.Start(ctx, name, f.path(name+".log"), host.Answers("http://"+f.metrics[i]+"/readyz"),
		f.program, "--kubeconfig", f.kubeconfig, "--namespace", namespace, "--image", image, "--identity", name,
		"--metrics", f.metrics[i], "--image-pull-secrets", "registry", "-v", "2")
	return err
}

func (f *fleet) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fleet) Close() error {
	var errs []error
	for _, d := range f.dispatchers {
		if d != nil && d.Alive() {
			errs = append(errs, d.Stop())
		}
	}
	if f.Cluster != nil {
		calls, refused := f.NoneRefused("pullgate-dispatcher", "")
		if calls == 0 && f.dispatchers != nil {
			refused = errors.Join(refused, errors.New("the audit log has no call of a dispatcher: it shows nothing"))
		}
		errs = append(errs, refused, f.Cluster.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}
