// RankDevice over HostStream: the device's memory is the host's.
#include <utility>

#include "client/device/rank_device.h"
#include "tandem/host_stream.h"

namespace tandem {
namespace {

class HostRankEvent : public RankEvent {
 public:
  Result<double> MicrosecondsSince(const RankEvent& start) const override {
    return static_cast<double>(event_.TimeNs() - static_cast<const HostRankEvent&>(start).event_.TimeNs()) /
           1e3;
  }
  HostEvent& event() { return event_; }

 private:
  HostEvent event_;
};

class HostRankGraph : public RankGraph {
 public:
  explicit HostRankGraph(HostGraphExec graph) : graph_(std::move(graph)) {}
  HostGraphExec& graph() { return graph_; }

 private:
  HostGraphExec graph_;
};

class HostRankStream : public RankStream {
 public:
  explicit HostRankStream(std::unique_ptr<HostStream> stream) : stream_(std::move(stream)) {}
  StreamRef ref() override { return stream_.get(); }
  Status Enqueue(std::function<void()> function) override { return stream_->Enqueue(std::move(function)); }
  Status Record(RankEvent& event) override {
    return stream_->Record(static_cast<HostRankEvent&>(event).event());
  }
  Status Wait(RankEvent& event) override { return stream_->Wait(static_cast<HostRankEvent&>(event).event()); }
  Status Synchronize(Milliseconds deadline) override { return stream_->Synchronize(deadline); }
  Result<bool> Query() override { return stream_->Query(); }
  Status BeginCapture() override { return stream_->BeginCapture(); }
  Result<std::unique_ptr<RankGraph>> EndCapture() override {
    TANDEM_ASSIGN_OR_RETURN(HostGraph graph, stream_->EndCapture());
    TANDEM_ASSIGN_OR_RETURN(HostGraphExec executable, graph.Instantiate());
    return std::unique_ptr<RankGraph>(std::make_unique<HostRankGraph>(std::move(executable)));
  }
  Status Replay(RankGraph& graph) override {
    return static_cast<HostRankGraph&>(graph).graph().Launch(*stream_);
  }

 private:
  std::unique_ptr<HostStream> stream_;
};

class HostRankMirror : public RankMirror {
 public:
  explicit HostRankMirror(std::byte* data) : data_(data) {}
  std::byte* data() const override { return data_; }
  Status ToDevice(RankStream&, size_t, size_t) override { return Status::Ok(); }
  Status ToHost(RankStream&, size_t, size_t) override { return Status::Ok(); }

 private:
  std::byte* data_;
};

class HostRankDevice : public RankDevice {
 public:
  Status Enter() override { return Status::Ok(); }
  Result<std::unique_ptr<RankStream>> MakeStream() override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<HostStream> stream, HostStream::Create());
    return std::unique_ptr<RankStream>(std::make_unique<HostRankStream>(std::move(stream)));
  }
  Result<std::unique_ptr<RankEvent>> MakeEvent() override {
    return std::unique_ptr<RankEvent>(std::make_unique<HostRankEvent>());
  }
  Result<std::unique_ptr<RankMirror>> MakeMirror(const Memory& memory) override {
    return std::unique_ptr<RankMirror>(std::make_unique<HostRankMirror>(memory.data()));
  }
};

}  // namespace

Result<std::shared_ptr<RankDevice>> internal::MakeHostRankDevice() {
  return std::shared_ptr<RankDevice>(std::make_shared<HostRankDevice>());
}

}  // namespace tandem
