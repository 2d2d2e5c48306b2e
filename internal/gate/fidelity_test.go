package gate_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// The gate forwards the calls that it judges or reads as transparently as unknown calls.
func TestForwardingThroughTheGateIsTransparent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, profile := range []criproxytest.Profile{criproxytest.Containerd, criproxytest.CRIO} {
		t.Run(profile.String(), func(t *testing.T) {
			if testing.Short() && profile == criproxytest.CRIO {
				t.Skip("the same table with another content type")
			}
			echo := criproxytest.NewEchoAs(t, profile)
			up, err := criproxy.Dial(echo.Endpoint())
			if err != nil {
				t.Fatal(err)
			}
			store, _, err := records.Open(filepath.Join(t.TempDir(), "records.db"), records.Options{})
			if err != nil {
				t.Fatal(err)
			}
			rt := gate.NewRuntime(up, up)
			trk := tracker.New(store, credential.NewKey(), rt, tracker.Options{})
			judge := gate.New(gate.Config{Tracker: trk, Pods: podindex.New(), Runtime: rt, Metrics: &counts{}, Log: klog.Logger{}})
			server := criproxy.New(criproxy.Config{
				Runtime: up, Image: up, Handlers: judge.Handlers(), Metrics: &counts{}, Log: klog.Logger{},
			})
			l := criproxytest.Listen(t, strings.TrimPrefix(echo.Endpoint(), "unix://")+".proxy")
			done := make(chan error, 1)
			go func() { done <- server.Serve(l) }()
			t.Cleanup(func() {
				server.Shutdown(context.WithoutCancel(t.Context()))
				if err := errors.Join(<-done, up.Close(), store.Close()); err != nil {
					t.Error(err)
				}
			})
			criproxytest.Fidelity(t, echo, "unix://"+l.Addr().String())
		})
	}
}
