// Every field of a status is there in C, with the meaning that it has in C++.
#include <gtest/gtest.h>

#include "client/lib/c_api/c_handles.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

class CStatusTest : public testing::Test {
 protected:
  ~CStatusTest() override { tandem_status_free(status_); }
  // The C form of `status`, valid until the next call.
  tandem_status* InC(const Status& status) {
    tandem_status_free(status_);
    status_ = c::ToC(status);
    return status_;
  }

 private:
  tandem_status* status_ = nullptr;
};

TEST_F(CStatusTest, HasEveryField) {
  const StatusDetail detail{.reason = "RANK_LOST",
                            .who = "ranks 1, 3",
                            .field = "operands[1].shape",
                            .limit = 4,
                            .usage = 3,
                            .ranks = {1, 3},
                            .pid = 4194303,
                            .gpu = 2};
  const tandem_status* status = InC(Unavailable("ranks 1 and 3 have gone").WithDetail(detail));
  EXPECT_EQ(tandem_status_code(status), TANDEM_UNAVAILABLE);
  EXPECT_STREQ(tandem_status_message(status), "ranks 1 and 3 have gone");
  EXPECT_STREQ(tandem_status_reason(status), "RANK_LOST");
  EXPECT_STREQ(tandem_status_who(status), "ranks 1, 3");
  EXPECT_STREQ(tandem_status_field(status), "operands[1].shape");
  EXPECT_EQ(tandem_status_limit(status), 4);
  EXPECT_EQ(tandem_status_usage(status), 3);
  EXPECT_EQ(tandem_status_pid(status), 4194303);
  EXPECT_EQ(tandem_status_gpu(status), 2);
  int ranks[3] = {-1, -1, -1};
  EXPECT_EQ(tandem_status_ranks(status, ranks, 1), 2u);
  EXPECT_EQ(ranks[0], 1);
  EXPECT_EQ(ranks[1], -1);
  EXPECT_EQ(tandem_status_ranks(status, ranks, 3), 2u);
  EXPECT_EQ(ranks[1], 3);
  EXPECT_EQ(ranks[2], -1);
}

// A program decides by it whether operands in place must be restored before a retry.
TEST_F(CStatusTest, ReportsWhetherALaunchHadStarted) {
  const Status aborted = Aborted("the engine of GPU 2 ended").WithDetail({.reason = "ENGINE_RESTARTED"});
  EXPECT_EQ(tandem_status_started(InC(aborted)), -1);
  EXPECT_EQ(tandem_status_started(InC(aborted.WithStarted(false))), 0);
  EXPECT_EQ(tandem_status_started(InC(aborted.WithStarted(true))), 1);
}

TEST_F(CStatusTest, OkIsNull) { EXPECT_EQ(InC(Status::Ok()), nullptr); }

}  // namespace
}  // namespace tandem
