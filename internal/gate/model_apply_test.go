package gate_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/policy"
)

// apply executes one operation.
func (w *modelWorld) apply(o op) {
	name := modelNames[o.name]
	switch o.kind {
	case opImportFirst, opImport, opTag:
		w.bring(o, name)
	case opPrecheck:
		x := &interruption{}
		if o.how != uninterrupted {
			x = &interruption{method: "ListImages", how: waitAfter}
		}
		w.doPrecheck(w.pod(o.pod), name, x)
	case opPull:
		p := w.pod(o.pod)
		w.doPull(p, name, w.password(p, o.cred), &interruption{method: "PullImage", how: o.how})
	case opCreate:
		w.create(o, name)
	case opStart:
		w.startNewest(w.pod(o.pod))
	case opRun:
		w.runPod(w.pod(o.pod), name, o.cred)
	case opHonest:
		w.honest(o.pod%4, name, o.n%3 == 0)
	case opRestorePod:
		w.restorePod(o, name)
	case opRemove:
		w.removeImage(o)
	case opDirectRemove:
		w.direct(func() { w.runtime.remove(o.content) })
	case opUntag:
		w.direct(func() { w.runtime.unname(name) })
	case opPush:
		if o.content < firstCheckpoint && o.content != unknown && int(o.name) < slices.Index(modelNames, checkpointNames[0]) {
			w.direct(func() { w.runtime.serves[name] = o.content })
		}
	case opCheckpoint:
		w.direct(func() { w.runtime.checkpoints[firstCheckpoint+content(int(o.n)%checkpoints)] = o.checkpoint() })
	case opRotate, opRecreate:
		w.rotate(o)
	case opRevoke:
		w.revoke(o, repositoryOf(name))
	case opAccept:
		w.accept(o, name)
	case opForget:
		w.forget(o, name)
	case opTrust:
		w.trust()
	case opPolicy:
		w.truth.mode = policy.Mode(modelPolicies[int(o.n)%len(modelPolicies)])
		w.tracker.SetRules(w.rules())
	case opEndPod:
		w.endPod(o.pod)
	case opNewSeen:
		if p := w.pods[o.pod]; p != nil {
			w.uids++
			p.seen = fmt.Sprintf("2026-11-21T05:00:00.%s-%d", p.uid, w.uids)
		}
	case opRestart, opKill, opLose:
		files := w.truth.files
		if o.n/4%3 == 0 { // they are changed meanwhile
			files = modelAccess[int(o.n/12)%len(modelAccess)]
		}
		w.restart(o.kind, o.n%4 != 0 || o.kind == opLose, files)
	case opRuntimeRestart:
		w.gate.Disconnected()
		for _, c := range w.waiting {
			c.cancel()
		}
		w.settle()
		if o.n%4 != 0 {
			w.sync()
		}
	case opOutage:
		w.direct(func() { w.runtime.down = o.n%2 == 0 })
	case opRelease:
		w.release(int(o.n % 4))
	case opCancel:
		if i := int(o.n % 4); i < len(w.waiting) {
			w.waiting[i].cancel()
		}
	case opLate:
		w.late()
	case opWait:
		w.wait(o)
	case opSign:
		if w.signatures {
			w.notary.change(o)
		}
	case opAccess:
		w.setAccess(modelAccess[int(o.n)%len(modelAccess)])
	case opNode:
		w.truth.node = modelNodeNamespaces[int(o.n)%len(modelNodeNamespaces)]
		w.tracker.SetRules(w.rules())
	case opAccount:
		w.changeAccount(o)
	case opAtOnce:
		w.pullAtOnce(o, name)
	case opKinds:
	}
}

// pullAtOnce pulls an image for two new pods of a tenant; the runtime answers the first pull last. Before, there may be
// a proof, which has expired in some worlds.
func (w *modelWorld) pullAtOnce(o op, name string) {
	at := o.pod % 4
	good := w.good[slots[at].namespace]
	password := good[len(good)-1]
	if o.n%4 > 0 {
		w.doPull(w.pod(at), name, password, &interruption{})
		time.Sleep(w.validity)
	}
	x := &interruption{method: "PullImage", how: []how{waitBefore, waitAfter}[o.n/4%2]}
	for _, at := range []uint8{at, at ^ 1} {
		w.endPod(at)
		if p := w.pod(at); w.doPrecheck(p, name, &interruption{}) == "" {
			w.doPull(p, name, password, x)
			x = &interruption{}
		}
	}
}

// direct changes the runtime, or the registries, without a call.
func (w *modelWorld) direct(f func()) {
	w.runtime.mu.Lock()
	defer w.runtime.mu.Unlock()
	f()
}

// bring imports an image or names one in the runtime.
func (w *modelWorld) bring(o op, name string) {
	if isID(name) || o.content == unknown || o.content >= firstCheckpoint {
		return
	}
	w.direct(func() {
		if _, ok := w.runtime.images[o.content]; !ok && o.kind == opTag {
			return
		}
		w.runtime.name(o.content, name)
		distrusted := w.process != nil && w.store.Distrusted() != nil
		w.truth.brought(pair{o.content, repositoryOf(name)}, !distrusted && (!w.verify || !w.scanned))
	})
}

func (w *modelWorld) create(o op, name string) {
	p := w.pod(o.pod)
	c, ok := w.on(name)
	var mounts []string
	switch o.n % 8 {
	case 1:
		c, ok = o.content, o.content != unknown
	case 2:
		if _, there := w.on(modelNames[o.other]); there {
			mounts = []string{modelNames[o.other]}
		}
	}
	if !ok {
		return
	}
	_, _ = w.doCreate(p, name, c.id(), mounts, &interruption{method: "CreateContainer", how: o.how})
}

func (w *modelWorld) startNewest(p *modelPod) {
	newest := ""
	w.direct(func() {
		for _, id := range w.runtime.order {
			if c := w.runtime.containers[id]; c.pod == p.uid && !c.started {
				newest = id
			}
		}
	})
	if newest != "" {
		_ = w.doStart(p, newest)
	}
}

// runPod does the calls of a kubelet for a pod with IfNotPresent.
func (w *modelWorld) runPod(p *modelPod, name string, cred credentialKind) {
	if w.doPrecheck(p, name, &interruption{}) == "" && !w.doPull(p, name, w.password(p, cred), &interruption{}) {
		return
	}
	c, ok := w.on(name)
	if !ok {
		return
	}
	if id, err := w.doCreate(p, name, c.id(), nil, &interruption{}); err == nil {
		_ = w.doStart(p, id)
	}
}

// honest runs a pod with a tenant that has a good credential for the image, or that has proved it before. The pod must
// run after at most one pull.
func (w *modelWorld) honest(at uint8, name string, byAccount bool) {
	if w.signatures && w.kind.noUserImage {
		return // a container without a name meets no policy
	}
	p := w.pod(at)
	if isID(name) || slices.Contains(checkpointNames, name) || w.podSource && w.pullPolicy[at] == "Never" {
		return
	}
	good := w.good[p.namespace]
	password := good[len(good)-1]
	if byAccount {
		password = w.accounts[p.namespace].tokens[len(w.accounts[p.namespace].tokens)-1]
	}
	var reachable bool
	w.direct(func() {
		_, err := w.runtime.fetch(name, password)
		reachable = err == nil
	})
	before, present := w.on(name)
	if w.truth.fenced(w.question(p, before, repositoryOf(name), w.proving(p, password))) {
		return
	}
	proved := present && w.truth.live[pair{before, repositoryOf(name)}][w.proving(p, password)] && w.validity == 0
	if w.podSource && w.pullPolicy[at] == "Always" || !w.skips && !w.fallback {
		proved = false // the registry must be asked
	}
	if !reachable && !(proved && w.runtime.down) {
		return
	}
	w.counts["honest pod"]++
	attempts := 1
	if w.signatures {
		defer w.notary.honest()()
		attempts = 2 // a denied container without an endorsement hides the next pre-check
	}
	for ; attempts > 0; attempts-- {
		failure, again := w.tryHonest(p, name, password, reachable, proved)
		if failure == "" {
			return
		}
		if !again || attempts == 1 {
			w.fail("liveness: %s", failure)
			return
		}
	}
}

// tryHonest does the calls of a kubelet for an honest pod, and returns what failed. again says that another attempt may
// help.
func (w *modelWorld) tryHonest(p *modelPod, name, password string, reachable, proved bool) (failure string,
	again bool,
) {
	shown := w.doPrecheck(p, name, &interruption{})
	if contentOf(shown) >= firstCheckpoint {
		return "", false // if nothing is verified, a checkpoint that has got the name may be in its place
	}
	if shown == "" {
		if !w.doPull(p, name, password, &interruption{}) {
			return fmt.Sprintf("a pull of %s by %s with a good credential fails (registry reached: %v, proved before: %v)", name,
				p.uid, reachable, proved), false
		}
	}
	c, ok := w.on(name)
	if !ok {
		return fmt.Sprintf("%s is not on the node after its pull", name), false
	}
	id, err := w.doCreate(p, name, c.id(), nil, &interruption{})
	if err == nil {
		err = w.doStart(p, id)
	}
	if err != nil {
		return fmt.Sprintf("a container of %s on %s, whose pull succeeded: %v", p.uid, name, err), true
	}
	return "", false
}

// restorePod restores a pod, in place of the one in the slot.
func (w *modelWorld) restorePod(o op, name string) {
	c, ok := w.on(name)
	if !ok {
		return
	}
	w.endPod(o.pod)
	p := w.newPod(o.pod)
	p.asksFor(name)
	w.uses(p, c, name)
	x := &interruption{may: w.mayStart(p, []string{name}), key: w.notary.key}
	var resp runtimeapi.RestorePodResponse
	ctx := context.WithValue(context.Background(), interruptionKey{}, x)
	err := w.call(ctx, runtimeapi.RuntimeService_RestorePod_FullMethodName, &runtimeapi.RestorePodRequest{
		Config: p.config(),
		ContainerConfigs: []*runtimeapi.ContainerConfig{{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: c.id(), UserSpecifiedImage: w.userImage(name)},
		}},
	}, &resp)
	if err != nil {
		w.pods[o.pod] = nil
		w.counts["pod not restored"]++
		return
	}
	w.counts["pod restored"]++
	p.sandbox = resp.GetPodSandboxId()
}

func (w *modelWorld) removeImage(o op) {
	if o.content == unknown {
		return
	}
	w.interrupted(&interruption{method: "RemoveImage", how: o.how}, func(ctx context.Context) {
		_ = w.call(ctx, runtimeapi.ImageService_RemoveImage_FullMethodName,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: o.content.id()}},
			&runtimeapi.RemoveImageResponse{})
	}, func() {})
}

func (w *modelWorld) rotate(o op) {
	ns := [...]string{"alice", "bob"}[o.pod%2]
	s := w.secrets[ns][o.pod/2%2]
	if o.kind == opRecreate {
		w.uids++
		s.uid = fmt.Sprintf("recreated-%d-%s", w.uids, ns)
		return
	}
	w.unlive(func(_ pair, password string) bool { return password == s.password })
	switch o.n % 4 {
	case 0, 1:
		w.passwords++
		next := fmt.Sprintf("%s%d", ns[:1], w.passwords)
		w.direct(func() {
			w.runtime.passwords[next] = true
			if o.n%4 == 1 {
				delete(w.runtime.passwords, s.password)
				w.good[ns] = slices.DeleteFunc(w.good[ns], func(p string) bool { return p == s.password })
			}
		})
		w.good[ns] = append(w.good[ns], next)
		s.password = next
	case 2:
		s.password = "junk"
	case 3:
		s.password = ns[:1] + "0"
	}
}

// unlive removes the requirement that a password must be allowed.
func (w *modelWorld) unlive(which func(pair, string) bool) {
	for p, passwords := range w.truth.live {
		for password := range passwords {
			if which(p, password) {
				delete(passwords, password)
			}
		}
	}
}

// restart ends pullgated and starts it again.
func (w *modelWorld) restart(kind opKind, syncs bool, files []modelFile) {
	var handover []byte
	if kind == opRestart {
		handover = w.stop()
	} else {
		w.kill()
	}
	if kind == opLose {
		w.must(os.Remove(w.path))
		_ = os.Remove(w.path + ".access")
		w.truth.lost()
		w.direct(func() {
			// Without the store, no record says which names of an image came with a checkpoint (docs/design/0022).
			for c, names := range w.runtime.images {
				for name := range names {
					w.truth.named[pair{c, repositoryOf(name)}] = true
				}
			}
			for _, l := range w.runtime.late {
				if l.by != nil && l.by.pull != nil {
					l.by.pull.lost = true
				}
			}
			for _, c := range w.runtime.containers {
				for i, on := range c.real {
					if c.started {
						w.truth.grant(c.pod, pair{on, repositoryOf(c.asked[i])}, reason{kind: byContainer})
					}
				}
			}
		})
		w.unlive(func(pair, string) bool { return true })
	}
	w.start()
	w.setAccess(files)
	if handover != nil {
		if _, err := w.tracker.TakeOver(handover); err != nil {
			w.counts["handover refused"]++
		} else {
			w.counts["handover"]++
		}
	}
	w.restored()
	if syncs {
		w.sync()
	}
}

// restored notes the grants that containers show. If the runtime does not report the name, the grants are for every
// name.
func (w *modelWorld) restored() {
	if !w.kind.noEcho && !w.kind.noUserImage {
		return
	}
	var started []*modelContainer
	w.direct(func() {
		for _, id := range w.runtime.order {
			if c := w.runtime.containers[id]; c.started {
				started = append(started, c)
			}
		}
	})
	for _, c := range started {
		for _, on := range c.real {
			for _, p := range w.pods {
				if p != nil && p.uid == c.pod {
					w.mayUseOne(p, on, "") // what the pod may use is granted
				}
			}
			w.truth.restored(c.pod, on, modelRepositories())
		}
	}
}

// late lets the runtime finish the oldest call without a waiting client.
func (w *modelWorld) late() {
	w.runtime.mu.Lock()
	n := len(w.runtime.late)
	w.runtime.mu.Unlock()
	if n > 0 {
		w.runtime.finishLate(0)
		w.counts["late call"]++
	}
}

func (w *modelWorld) lateAll() {
	for range 16 {
		w.late()
	}
}

// wait lets time pass. The runtime finishes its calls within an hour.
func (w *modelWorld) wait(o op) {
	if o.wait() > time.Hour {
		w.lateAll()
		for _, c := range slices.Clone(w.waiting) {
			c.cancel()
		}
		w.settle()
		w.runtime.mu.Lock()
		w.runtime.late = nil
		w.runtime.mu.Unlock()
	}
	time.Sleep(o.wait())
}
