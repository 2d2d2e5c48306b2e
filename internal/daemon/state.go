package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// grantsFile is beside the files of the tracker from an orderly stop to the next start.
const grantsFile = "grants.json"

// KeyPath returns the path of the node's key in a state directory.
func KeyPath(stateDir string) string { return filepath.Join(stateDir, tracker.KeyFile) }

// NodeCredentialsPath returns the path of the node credentials of earlier runs in a state directory.
func NodeCredentialsPath(stateDir string) string {
	return filepath.Join(stateDir, nodecreds.File)
}

func storeHint(err error) error {
	var path *fs.PathError
	switch {
	case errors.As(err, &path) && path.Op == "mkdir":
		return program.WithHint(err, "set stateDir to a directory on a local disk that pullgated may write")
	case errors.Is(err, tracker.ErrNewerFormat):
		return program.WithHint(err, "a newer pullgated wrote this store; "+
			"install that version again, or move the file away: every image then needs proof once")
	case errors.Is(err, tracker.ErrInUse):
		return program.WithHint(err, "another pullgated has it open; see systemctl status pullgated")
	default:
		return program.WithHint(err, "the store was left as it was; look for errors of the disk in the kernel log (dmesg), "+
			"and check that stateDir is a directory on a local disk that pullgated may write and that is not full")
	}
}

// panicked ends the process after a panic in a transaction: bbolt may hold its locks for ever. systemd restarts it.
func panicked(log klog.Logger, path string) func(value any, stack []byte) {
	return func(value any, stack []byte) {
		err := fmt.Errorf("panic: %v", value)
		if records.FailedRead(value) {
			log.Error(err, "Failed to read the store of pull records: exiting",
				"path", path, "hint", "look for errors of the disk in the kernel log (dmesg)")
		} else {
			log.Error(err, "A transaction of the store of pull records panicked: exiting. "+
				"Report it with the stack, unless pullgatectl store check finds damage",
				"path", path, "stack", string(stack))
		}
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func logReport(log klog.Logger, dir string, r tracker.Report) {
	path, keyPath := filepath.Join(dir, tracker.StoreFile), KeyPath(dir)
	if r.Key.Exposed != nil {
		log.Error(r.Key.Exposed, "node.key had unsafe permissions; reset to 0600", "path", keyPath,
			"hint", "a user who has read node.key and records.db can test guessed passwords; "+
				"if in doubt, delete node.key and restart: every image then needs proof once")
	}
	switch {
	case r.SetAside != "" && !r.Created:
		log.Error(errors.New(r.Damage), "Removed values that cannot be read from the store of pull records, "+
			"which is now distrusted: images on the node are not marked preloaded",
			"path", path, "copy", r.SetAside, "hint", distrustHint)
	case r.SetAside != "":
		log.Error(errors.New(r.Damage), "Store of pull records damaged and moved aside, "+
			"the new one is distrusted: images on the node need proof",
			"path", path, "setAside", r.SetAside, "hint", distrustHint)
	case r.Distrust != nil:
		log.Error(errors.New(r.Distrust.Reason), "Store of pull records is distrusted: "+
			"images on the node are not marked preloaded",
			"path", path, "since", r.Distrust.Since, "hint", distrustHint)
	}
	if r.Created && r.SetAside == "" {
		log.Info("Store of pull records made", "path", path)
	}
	logKey(log, keyPath, r.Key)
}

func logKey(log klog.Logger, path string, r tracker.KeyReport) {
	if r.Damaged != nil {
		log.Error(r.Damaged, "The node's key cannot be read: no proof that was recorded before matches, "+
			"every image needs proof once", "path", path, "setAside", r.SetAside)
	}
	if r.Unmoved != nil {
		log.Error(r.Unmoved, "Failed to set the node's key aside", "path", path)
	}
	if r.Unread != nil {
		log.Error(r.Unread, "The node's key cannot be read at the moment: "+
			"until the next restart no proof that was recorded before matches", "path", path)
	}
	if r.Lost {
		log.Error(errors.New("the file is missing"), "The node's key is lost: "+
			"no proof that was recorded before matches, every image needs proof once", "path", path)
	}
	if r.Unwritten != nil {
		log.Error(r.Unwritten, "Failed to write the node's key: proofs last until the next restart only", "path", path)
	}
	if r.Other {
		log.Error(errors.New("fingerprints differ"), "The node's key is not the one that the store was written with: "+
			"no proof that was recorded before matches")
	}
	if r.Unnoted != nil {
		log.Error(r.Unnoted, "Failed to write the fingerprint of the node's key: a lost key may go unnoticed")
	}
}

const distrustHint = "pullgatectl preloaded accept IMAGE opens one image to every pod, " +
	"pullgatectl distrust end opens all that nothing is known of; " +
	"without the admin API start once with --accept-present-images"

// maxGrants bounds the file of grants, in bytes; a grant takes a few hundred bytes.
const maxGrants = 64 << 20

// handOver writes the grants to a file for the next process, which would otherwise deny containers to pods that have
// not started theirs yet. Without the file pods prove access again.
func handOver(o Options, t *tracker.Tracker) {
	data, err := t.HandOver()
	if err == nil {
		err = disk.Write(filepath.Join(o.Config.StateDir, grantsFile), disk.Options{Replace: true}, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	if err != nil {
		o.Log.Info("Grants not handed over to the next start, pods whose containers are being created prove access again",
			"err", err)
	}
}

// takeOver restores the grants of the last process. It deletes the file first: a grant that ends later must not return.
func takeOver(o Options, t *tracker.Tracker) {
	path := filepath.Join(o.Config.StateDir, grantsFile)
	data, err := disk.Read(path, maxGrants)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	n := 0
	if err = errors.Join(err, os.Remove(path), disk.SyncFolder(o.Config.StateDir)); err == nil {
		n, err = t.TakeOver(data)
	}
	if err != nil {
		o.Log.Info("Failed to take over the grants of the last run: pods with containers in creation must prove access again",
			"err", err)
		return
	}
	o.Log.Info("Grants of the last run taken over", "grants", n)
}

func warnOfSettings(log klog.Logger, c config.Config) {
	warnOfRuntimeCredentials(log, c, "/")
	// Which kubelet calls is known later.
	if c.RegistryUnavailableGrace.Value() > 0 && c.WaitsForRegistry() {
		log.Info("registryUnavailableGrace has no effect for kubelets before 1.33: set podSource.kubeconfig, or "+
			"registryOutageFallback", "registryUnavailableGrace", c.RegistryUnavailableGrace)
	}
}

// warnOfRuntimeCredentials warns if CRI-O has credentials for namespaces, and the configuration says that it has none.
func warnOfRuntimeCredentials(log klog.Logger, c config.Config, root string) {
	if c.RuntimeCredentials == config.RuntimeCredentialsPerNamespace {
		return
	}
	found, unread := doctor.Host{Root: root}.NamespaceCredentials()
	if len(found) > 0 {
		log.Error(nil, "CRI-O pulls with credentials of namespaces, and runtimeCredentials is none: "+
			"such pulls open images to every pod; set runtimeCredentials: perNamespace", "found", found)
	}
	for _, err := range unread {
		log.Info("Failed to find out whether CRI-O has credentials of namespaces", "err", err)
	}
}
