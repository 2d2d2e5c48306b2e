package podsource_test

import (
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
)

// The API server stops, with all state of its watches, and etcd is compacted before it starts again.
func TestAnOutageOfTheAPIServerLosesNothing(t *testing.T) {
	t.Parallel()
	c, err := cluster.Start(t.Context(), t.TempDir(), kubernetes134) // the other tests need theirs
	if err != nil {
		t.Fatal(err)
	}
	host.AtEnd(t, c.Close)
	w := beginOn(t, c)
	own := w.secret("own", "own")
	stays := w.pod("stays", "own")
	w.start()
	w.learns(stays, own)
	goes := w.pod("goes", "own")
	w.learns(goes, own) // through the watch, which then continues where it was instead of listing again
	asked := time.Now()
	w.must(w.cluster.StopAPI())
	w.until("not synced", func() bool { return !w.source.Synced() })
	w.until("unreachable", func() bool { return w.failed(podsource.Unreachable) > 0 })
	w.must(w.cluster.LosePod(w.Context(), w.name, "goes"))
	w.keeps(asked.Add(fresh), func() bool { return w.has(stays, own) && w.has(goes, own) && !w.source.Synced() })

	w.must(w.cluster.StartAPI(w.Context()))
	second := w.secret("second", "second")
	w.learns(w.pod("new", "second", "own"), second, own)
	w.until("synced", w.source.Synced)
	if w.known(goes) {
		t.Error("a pod that is gone is known after a new list")
	}
	if w.failed(podsource.Expired) == 0 {
		t.Errorf("reasons %v; want expired among them: etcd forgot what the watch had missed", w.reasons)
	}
	rotated := w.rotate("own", "rotated")
	w.learns(stays, rotated)
}
