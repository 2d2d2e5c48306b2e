package fleet_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
)

const (
	ordinary = "default" // the namespace of pods that are as their users write them, with tokens
	account  = "default" // the service account of pods that name none, installing pods among them
	mounted  = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// withoutToken looks into the pod that installs pullgate on a node, and into an ordinary one beside it, where the same
// look finds a token.
func (s *site) withoutToken(n *fleet.Node) {
	s.Helper()
	var installer corev1.Pod
	if !host.Within(time.Minute, func() bool {
		all := s.installers(n)
		if len(all) == 1 {
			installer = all[0]
		}
		return len(all) == 1 && runs(&installer)
	}) {
		s.explain(n)
		s.Fatalf("no pod installs pullgate on %s", n.Name)
	}
	mounts, tokens := s.held(n, &installer)
	want := []string{
		"/", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/opt/pullgate", "/podinfo", "/run/dbus/system_bus_socket",
	}
	if !slices.Equal(mounts, want) || len(tokens) > 0 || installer.Spec.ServiceAccountName != account {
		s.Errorf("the installing pod, of the service account %q, has mounts at %v and tokens at %v; want mounts at %v",
			installer.Spec.ServiceAccountName, mounts, places(tokens), want)
	}

	core := s.fleet.Client.CoreV1()
	given := testkit.Value(core.ServiceAccounts(ordinary).CreateToken(s.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(s).Status.Token
	p := fleet.Pod(n.Name, "ordinary", s.app())
	p.Spec.AutomountServiceAccountToken = nil
	p.Spec.Containers[0].Args = []string{given}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN", Value: given}}
	pods := core.Pods(ordinary)
	testkit.Value(pods.Create(s.Context(), p, metav1.CreateOptions{}))(s)
	defer func() { s.must(pods.Delete(s.Context(), p.Name, metav1.DeleteOptions{})) }()
	if !host.Within(time.Minute, func() bool {
		p = testkit.Value(pods.Get(s.Context(), p.Name, metav1.GetOptions{}))(s)
		return runs(p)
	}) {
		s.Fatalf("the ordinary pod does not run: %+v", p.Status)
	}
	mounts, tokens = s.held(n, p)
	token := ""
	for place, t := range tokens {
		if within([]string{mounted}, place) {
			token = t
		}
	}
	if !slices.Contains(mounts, mounted) || token == "" || tokens["environ"] != given || tokens["cmdline"] != given {
		s.Errorf("the ordinary pod has mounts at %v and tokens at %v; want them found", mounts, places(tokens))
	}
	client := testkit.Value(kubernetes.NewForConfig(s.fleet.Config(token)))(s)
	who := testkit.Value(client.AuthenticationV1().SelfSubjectReviews().Create(s.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))(s).Status.UserInfo.Username
	if who != user(ordinary) {
		s.Errorf("the token that was found is of %s; want %s", who, user(ordinary))
	}
}

func runs(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
}

// user is the name of the service account of a namespace at the API server.
func user(namespace string) string { return "system:serviceaccount:" + namespace + ":" + account }

func places(tokens map[string]string) []string { return slices.Sorted(maps.Keys(tokens)) }

// token is a token of a service account in a text.
var token = regexp.MustCompile(`eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+`)

// held returns what the process of a pod of one container has on its node: where something is mounted, except the file
// systems of the kernel, and the tokens in its files, environment and command line, by where they are.
func (s *site) held(n *fleet.Node, p *corev1.Pod) (mounts []string, tokens map[string]string) {
	s.Helper()
	proc, tokens := "", map[string]string{}
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	tasks := testkit.Value(n.Run(s.Context(), "ctr", "--namespace=k8s.io", "tasks", "list"))(s)
	for line := range strings.Lines(tasks) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == id {
			proc = n.Path("/proc/" + f[1])
		}
	}
	if proc == "" {
		s.Fatalf("pod %s has no process: its container is %s, and the runtime has\n%s", p.Name, id, tasks)
	}
	look := func(place, file string) error {
		content, err := os.ReadFile(file)
		if t := token.Find(content); t != nil {
			tokens[place] = string(t)
		}
		return err
	}
	s.must(look("environ", proc+"/environ"), look("cmdline", proc+"/cmdline"))
	kernel := []string{"/proc", "/sys", "/dev"}
	for line := range strings.Lines(string(testkit.Value(os.ReadFile(proc + "/mountinfo"))(s))) {
		if at := strings.Fields(line)[4]; !within(kernel, at) && !slices.Contains(mounts, at) {
			mounts = append(mounts, at)
		}
	}
	slices.Sort(mounts)
	const large = 1 << 18 // a token is not in a program
	root := proc + "/root"
	s.must(filepath.WalkDir(root+"/", func(file string, d fs.DirEntry, err error) error {
		place := filepath.Clean("/" + strings.TrimPrefix(file, root))
		if err == nil && d.IsDir() && within(kernel, place) {
			return fs.SkipDir
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info() // d has what is below a mount
		}
		if err == nil && info.Mode().IsRegular() && info.Size() < large {
			err = look(place, file)
		}
		if errors.Is(err, fs.ErrNotExist) { // the pod works
			return nil
		}
		return err
	}))
	return mounts, tokens
}
