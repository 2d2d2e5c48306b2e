package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/daemon"
	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	// maxMessage bounds the bytes of a request or an answer that are kept. A longer one is forwarded and not reported.
	maxMessage = 4 << 20
	// endLimit is how long a provider may take to end after the signal.
	endLimit = 2 * time.Second
	// reportLimit bounds the time that a report adds to a pull.
	reportLimit = time.Second
)

const providerLong = `credential-provider is a credential provider plugin for the kubelet. It runs the
real one, forwards its answer unchanged, and reports to pullgated the IDs of the
credentials in it. An image that is pulled with one of them is open to all
pods. If the kubelet has sent a service account token, it is proved for the pods
of that service account. So a rotated token needs no registry. No credential or
token leaves this process but to the kubelet and to the real plugin.

What the real plugin prints and its exit code are passed on. If the report
to pullgated fails, one line on stderr has the reason, and the kubelet still gets its answer:
a pod then proves access with its own credential. If nodeCredentials.namespaces is set, the
kubelet gets none, and the exit code is 1.

To put it in place, on a node whose kubelet runs a plugin already:

1. Link pullgated into the folder of --image-credential-provider-bin-dir, under
   a name of its own for each plugin:

     ln -s /usr/local/bin/pullgated BIN-DIR/pullgate-ecr

2. In the file of --image-credential-provider-config give the plugin that name,
   and put its own behind it. Keep matchImages and all other fields:

     apiVersion: kubelet.config.k8s.io/v1
     kind: CredentialProviderConfig
     providers:
     - name: pullgate-ecr                 # was: ecr-credential-provider
       args: [credential-provider, --, BIN-DIR/ecr-credential-provider, get-credentials]
       matchImages: ["*.dkr.ecr.*.amazonaws.com"]
       defaultCacheDuration: 12h
       apiVersion: credentialprovider.kubelet.k8s.io/v1

3. Restart the kubelet.`

const providerExamples = `  # Ask a plugin by hand
  echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "kind": "CredentialProviderRequest", "image": "registry.example/app"}' |
    pullgated credential-provider -- /opt/plugins/provider

  # With another configuration than the default one
  pullgated credential-provider --socket /run/gate/admin.sock \
    --state-dir /srv/pullgate -- /opt/plugins/provider --profile node`

type providerFlags struct{ socket, stateDir string }

func providerCommand() *cobra.Command {
	var f providerFlags
	cmd := &cobra.Command{
		Use:                   "credential-provider [--socket path] [--state-dir dir] -- provider [argument...]",
		DisableFlagsInUseLine: true,
		Short: "Run a kubelet's credential provider plugin, and report the IDs of its credentials " +
			"to pullgated",
		Long:    providerLong,
		Example: providerExamples,
		Args: func(cmd *cobra.Command, args []string) error {
			const see = "as in pullgated credential-provider -- /opt/plugins/provider; see pullgated credential-provider --help"
			switch dash := cmd.ArgsLenAtDash(); {
			case dash > 0, dash < 0 && len(args) > 0:
				return program.Usagef("unexpected argument %q; give the plugin to run after --, %s", args[0], see)
			case len(args) == 0:
				return program.Usagef("no plugin to run; give it after --, %s", see)
			default:
				return nil
			}
		},
		RunE: func(cmd *cobra.Command, args []string) error { return provide(cmd, f, args) },
	}
	cmd.Flags().StringVar(&f.socket, "socket", strings.TrimPrefix(cli.Default, "unix://"),
		"`path` of the socket of the admin API: admin.listen of pullgated's configuration")
	cmd.Flags().StringVar(&f.stateDir, "state-dir", "/var/lib/pullgate",
		"`directory` that holds node.key: stateDir of its configuration")
	return cmd
}

// provide runs the real plugin. If this program fails, the kubelet still gets the plugin's answer.
func provide(cmd *cobra.Command, f providerFlags, args []string) error {
	// Until the plugin runs, a signal ends this process at once, also during a read.
	signal.Reset(syscall.SIGTERM, syscall.SIGINT)
	stdin := cmd.InOrStdin()
	request, err := io.ReadAll(io.LimitReader(stdin, maxMessage+1))
	if err != nil {
		return fmt.Errorf("read the kubelet's request: %w", err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	answer := &bufferedAnswer{to: cmd.OutOrStdout(), whole: nodecreds.Reserved(daemon.NodeCredentialsPath(f.stateDir))}
	child := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the kubelet's configuration names it
	child.Stdin, child.Stdout, child.Stderr = io.MultiReader(bytes.NewReader(request), stdin), answer, cmd.ErrOrStderr()
	if len(request) <= maxMessage {
		child.Stdin = bytes.NewReader(request)
	}
	if err := runChild(child); err != nil {
		return errors.Join(err, answer.release())
	}
	err = sendReport(ctx, f, request, answer)
	if err != nil && nodecreds.Reserved(daemon.NodeCredentialsPath(f.stateDir)) {
		return fmt.Errorf("the answer is withheld from the kubelet, because nodeCredentials.namespaces is set and it is not "+
			"reported: %w", err)
	}
	if err != nil {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "pullgated: not reported, so that images pulled with these credentials "+
			"are proved for pods with the same credential alone: %v\n", err)
	}
	return answer.release()
}

// runChild runs a program to its end; this process ends no earlier. An exit code other than 0 is a program.ChildError.
func runChild(child *exec.Cmd) error {
	// The kubelet kills a plugin that takes too long, and the wrapped plugin must end with this process. Linux sends the
	// signal when the thread that started the program ends, hence the lock.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = endLimit
	err := child.Run()
	if child.ProcessState == nil {
		return program.WithHint(fmt.Errorf("run the plugin: %w", err),
			"give the path of the real plugin after --, as in pullgated credential-provider -- /opt/plugins/provider")
	}
	if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return program.ChildError{Code: 128 + int(status.Signal())} // as in shells
	}
	if code := child.ProcessState.ExitCode(); code != 0 {
		return program.ChildError{Code: code}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run the plugin: %w", err)
	}
	return nil
}

func sendReport(ctx context.Context, f providerFlags, request []byte, answer *bufferedAnswer) error {
	if len(request) > maxMessage || answer.passing {
		return fmt.Errorf("request or answer has more than %d bytes", maxMessage)
	}
	r, err := nodecreds.ReportOf(request, answer.buffered.Bytes(), daemon.KeyPath(f.stateDir), time.Now())
	if err != nil || len(r.Credentials) == 0 {
		return err
	}
	req := &adminv1.ReportNodeCredentialsRequest{KeyFingerprint: r.KeyFingerprint, Expires: timestamppb.New(r.Expires)}
	if a := r.Account; a != (nodecreds.Account{}) {
		req.ServiceAccount = &adminv1.ServiceAccountRef{Uid: a.UID, Namespace: a.Namespace, Name: a.Name}
	}
	for _, c := range r.Credentials {
		req.Credentials = append(req.Credentials, &adminv1.NodeCredential{CredentialId: string(c.ID), Images: c.Images})
	}
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	link := cli.Link{Path: f.socket, Limit: reportLimit}
	err = link.Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) error {
		_, err := api.ReportNodeCredentials(ctx, req)
		return err
	})
	if advice := program.HintOf(err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return err
}

// A bufferedAnswer keeps the written bytes until release, so that pullgated receives a credential before the kubelet
// can use it. It does not hold back an answer that is longer than maxMessage.
type bufferedAnswer struct {
	to       io.Writer
	buffered bytes.Buffer
	passing  bool
	whole    bool // a longer answer is an error
}

// Write keeps the bytes or forwards them.
func (a *bufferedAnswer) Write(p []byte) (int, error) {
	if !a.passing && a.buffered.Len()+len(p) <= maxMessage {
		return a.buffered.Write(p)
	}
	if a.whole {
		a.buffered.Reset()
		return 0, fmt.Errorf("the answer has more than %d bytes", maxMessage)
	}
	if err := a.release(); err != nil {
		return 0, err
	}
	return a.to.Write(p)
}

func (a *bufferedAnswer) release() error {
	a.passing = true
	if _, err := a.buffered.WriteTo(a.to); err != nil {
		return fmt.Errorf("pass the plugin's answer on: %w", err)
	}
	return nil
}
