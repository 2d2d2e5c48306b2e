// Command stubkubelet is as much of a kubelet as is needed to see how one is configured: it takes the flags that set an
// endpoint, and its configuration file, makes the calls that a kubelet makes all the time, and reports on
// /healthz whether it gets answers. It ends if it gets none at the start, as a kubelet does.
//
// Called k3s, it takes its flags from where k3s does.
package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
)

// failing is a file that makes it end as soon as it is pointed at pullgate, as one that cannot work behind it.
const failing = "/run/stubkubelet-fails"

func main() {
	// Whatever ends it, systemd starts it again.
	fmt.Fprintln(os.Stderr, "stubkubelet ends:", run())
}

func run() (err error) {
	defer host.Catch(&err)
	endpoint := endpoint()
	if _, err := os.Stat(failing); err == nil && strings.Contains(endpoint, "pullgate") {
		return fmt.Errorf("it does not want to dial %s", endpoint)
	}
	fmt.Fprintln(os.Stderr, "stubkubelet dials", endpoint)
	conn := host.Must(grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())))
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	ask := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		_, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err
	}
	host.Check(ask())
	var failure atomic.Pointer[error]
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := failure.Load(); err != nil {
			http.Error(w, (*err).Error(), http.StatusInternalServerError)
		}
	})
	go func() {
		for range time.Tick(time.Second) {
			if err := ask(); err != nil {
				failure.Store(&err)
			} else {
				failure.Store(nil)
			}
		}
	}()
	server := http.Server{Addr: "127.0.0.1:10248", ReadHeaderTimeout: time.Second}
	return server.ListenAndServe()
}

// endpoint returns the configured one, the last flag before the file.
func endpoint() string {
	args, dialled := os.Args[1:], "unix:///run/containerd/containerd.sock"
	if filepath.Base(os.Args[0]) == "k3s" {
		args = argsOfK3s()
	}
	file, flag := "", ""
	for _, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--config="); ok {
			file = v
		}
		if v, ok := strings.CutPrefix(arg, "--container-runtime-endpoint="); ok {
			flag = v
		}
	}
	if file != "" {
		var c struct {
			Endpoint string `json:"containerRuntimeEndpoint"`
		}
		read(file, &c)
		dialled = cmp.Or(c.Endpoint, dialled)
	}
	return cmp.Or(flag, dialled)
}

func argsOfK3s() (args []string) {
	files := host.Must(filepath.Glob("/etc/rancher/k3s/config.yaml.d/*.yaml"))
	for _, f := range append([]string{"/etc/rancher/k3s/config.yaml"}, files...) {
		var c struct {
			Endpoint string   `json:"container-runtime-endpoint"`
			Args     []string `json:"kubelet-arg"`
			More     []string `json:"kubelet-arg+"`
		}
		read(f, &c)
		if c.Args != nil {
			args = nil
		}
		if c.Endpoint != "" {
			args = append(args, "--container-runtime-endpoint=unix://"+c.Endpoint)
		}
		for _, a := range append(c.Args, c.More...) {
			args = append(args, "--"+a)
		}
	}
	return args
}

func read(file string, into any) { host.Check(yaml.Unmarshal(host.Must(os.ReadFile(file)), into)) }
